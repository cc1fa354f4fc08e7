//! Why a line has no hashes, as its error record says it.

use kvhash::RequestError;
use serde_json::{Map, Value, json};

/// How much of an offending value is quoted.
const LONGEST_QUOTE: usize = 80;

/// What is wrong with one line: the kind, a sentence, and the numbers and names in it.
#[derive(Debug)]
pub(crate) struct Fault {
    pub(crate) kind: &'static str,
    pub(crate) message: String,
    details: Map<String, Value>,
}

impl Fault {
    pub(crate) fn new(kind: &'static str, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), details: Map::new() }
    }

    /// Adds a number or name under its own key.
    pub(crate) fn with(mut self, key: &str, value: impl Into<Value>) -> Self {
        self.details.insert(key.into(), value.into());
        self
    }

    /// A field whose value is not what it has to be.
    pub(crate) fn bad_field(field: &str, value: &str, expected: &str) -> Self {
        let value = quote(value);
        Self::new("BadField", format!("{field} is {value}; it has to be {expected}"))
            .with("field", field)
            .with("value", value)
    }

    /// The error object of a record.
    pub(crate) fn to_json(&self) -> Value {
        let mut object = Map::new();
        object.insert("kind".into(), self.kind.into());
        object.insert("message".into(), self.message.clone().into());
        object.extend(self.details.clone());
        object.into()
    }
}

/// A value as it stood, cut where it goes on for long.
pub(crate) fn quote(value: &str) -> String {
    match value.char_indices().nth(LONGEST_QUOTE) {
        None => value.into(),
        Some((end, _)) => format!("{}…", &value[..end]),
    }
}

impl From<RequestError> for Fault {
    fn from(error: RequestError) -> Self {
        let details = match error {
            RequestError::EmptyRun { offset } => json!({ "offset": offset, "length": 0 }),
            RequestError::OffsetOverflow { offset, length } => {
                json!({ "offset": offset, "length": length })
            }
            RequestError::OutOfBounds { offset, length, tokens_len } => {
                json!({ "offset": offset, "length": length, "tokens_len": tokens_len })
            }
            RequestError::Overlapping { position } => json!({ "position": position }),
            RequestError::ZeroBlockSize => json!({ "block_size": 0 }),
            RequestError::PositionLimit { position } => {
                json!({ "position": position, "limit": kvhash::MAX_POSITION })
            }
            _ => json!({}),
        };
        let mut fault = Self::new(error.kind(), error.to_string());
        if let Value::Object(details) = details {
            fault.details = details;
        }
        fault
    }
}
