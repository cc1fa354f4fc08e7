//! JSON objects as the list of their fields, so that duplicates are seen and numbers keep
//! every digit.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

/// The fields of an object in the order of the text.
pub(crate) struct Object<'a>(pub(crate) Vec<(Cow<'a, str>, &'a RawValue)>);

impl<'de: 'a, 'a> Deserialize<'de> for Object<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Fields;

        impl<'de> Visitor<'de> for Fields {
            type Value = Object<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a JSON object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Object<'de>, A::Error> {
                let mut fields = Vec::new();
                while let Some(Name(name)) = map.next_key()? {
                    fields.push((name, map.next_value()?));
                }
                Ok(Object(fields))
            }
        }

        deserializer.deserialize_map(Fields)
    }
}

/// A string that is borrowed unless it has escapes.
pub(crate) struct Name<'a>(pub(crate) Cow<'a, str>);

impl<'de: 'a, 'a> Deserialize<'de> for Name<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;

        impl<'de> Visitor<'de> for Text {
            type Value = Name<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string")
            }

            fn visit_borrowed_str<E: Error>(self, text: &'de str) -> Result<Name<'de>, E> {
                Ok(Name(Cow::Borrowed(text)))
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Name<'de>, E> {
                Ok(Name(Cow::Owned(text.into())))
            }
        }

        deserializer.deserialize_str(Text)
    }
}

/// Calls `visit` with each element of an array and its index, until it gives an answer.
///
/// # Errors
///
/// Where `json` is no array.
pub(crate) fn find_in_array<'a, T>(
    json: &'a str,
    visit: impl FnMut(usize, &'a RawValue) -> Option<T>,
) -> serde_json::Result<Option<T>> {
    struct Elements<F>(F);

    impl<'de, T, F: FnMut(usize, &'de RawValue) -> Option<T>> Visitor<'de> for Elements<F> {
        type Value = Option<T>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a JSON array")
        }

        fn visit_seq<A: SeqAccess<'de>>(mut self, mut array: A) -> Result<Option<T>, A::Error> {
            let mut found = None;
            let mut index = 0;
            while let Some(element) = array.next_element()? {
                if found.is_none() {
                    found = (self.0)(index, element);
                }
                index += 1;
            }
            Ok(found)
        }
    }

    serde_json::Deserializer::from_str(json).deserialize_seq(Elements(visit))
}
