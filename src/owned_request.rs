//! A request that lives longer than the call that it is made for.

use std::fmt;
use std::sync::Arc;

use crate::plh::PositionalLineageHash;
use crate::request::{MmRun, Request};

/// A [`Request`] that owns its parts, or its share of them, to be kept in a queue or handed across a
/// binding.
///
/// ```
/// use std::sync::Arc;
///
/// use kvhash::{Engine, Lineages, OwnedRequest, Request};
///
/// let prompt: Arc<[u32]> = vec![7; 40].into();
/// let queued = [
///     OwnedRequest::new(vec![7; 40]).salt("tenant-7"),
///     OwnedRequest::shared(Arc::clone(&prompt)).salt("tenant-7"),
/// ];
/// assert_eq!(queued[0], queued[1]);
/// let requests: Vec<Request<'_>> = queued.iter().map(OwnedRequest::as_request).collect();
/// let mut lineages = Lineages::new();
/// Engine::builder().build()?.hash(&requests, &mut lineages);
/// assert_eq!(lineages.get(0)?.plhs().len(), 2);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Default)]
pub struct OwnedRequest {
    pub(crate) tokens: Tokens,
    pub(crate) terms: Terms,
}

#[derive(Clone)]
pub(crate) enum Tokens {
    Owned(Vec<u32>),
    Shared(Arc<[u32]>),
}

impl Tokens {
    #[inline(always)]
    pub(crate) fn as_slice(&self) -> &[u32] {
        match self {
            Self::Owned(tokens) => tokens,
            Self::Shared(tokens) => tokens,
        }
    }
}

impl Default for Tokens {
    fn default() -> Self {
        Self::Owned(Vec::new())
    }
}

impl fmt::Debug for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_slice().fmt(f)
    }
}

/// The terms on which tokens are hashed: all of a request but those.
#[derive(Debug, Clone, Default)]
pub(crate) struct Terms {
    salt: Option<Box<str>>,
    /// What few requests have. It lies apart so that the others are short.
    rest: Option<Box<Rest>>,
}

#[derive(Debug, Clone, Default)]
struct Rest {
    lora_name: Option<String>,
    mm_runs: Vec<MmRun>,
    block_size: Option<u32>,
    max_blocks: Option<usize>,
    parent: Option<PositionalLineageHash>,
}

impl OwnedRequest {
    /// See [`Request::new`].
    pub fn new(tokens: impl Into<Vec<u32>>) -> Self {
        Self { tokens: Tokens::Owned(tokens.into()), ..Self::default() }
    }

    /// A request of tokens that others hold, too: they are not copied. See [`Request::new`].
    pub fn shared(tokens: Arc<[u32]>) -> Self {
        Self { tokens: Tokens::Shared(tokens), ..Self::default() }
    }

    /// See [`Request::lora_name`].
    pub fn lora_name(self, name: impl Into<String>) -> Self {
        self.with(|rest| rest.lora_name = Some(name.into()))
    }

    /// See [`Request::salt`].
    pub fn salt(self, salt: impl Into<String>) -> Self {
        let salt = Some(salt.into().into_boxed_str());
        Self { terms: Terms { salt, ..self.terms }, ..self }
    }

    /// See [`Request::mm_runs`].
    pub fn mm_runs(self, runs: impl Into<Vec<MmRun>>) -> Self {
        self.with(|rest| rest.mm_runs = runs.into())
    }

    /// See [`Request::block_size`].
    pub fn block_size(self, tokens: u32) -> Self {
        self.with(|rest| rest.block_size = Some(tokens))
    }

    /// See [`Request::max_blocks`].
    pub fn max_blocks(self, n: usize) -> Self {
        self.with(|rest| rest.max_blocks = Some(n))
    }

    /// See [`Request::resume`].
    pub fn resume(self, parent: PositionalLineageHash) -> Self {
        self.with(|rest| rest.parent = Some(parent))
    }

    fn with(mut self, set: impl FnOnce(&mut Rest)) -> Self {
        set(self.terms.rest.get_or_insert_default());
        self
    }

    /// The token ids.
    pub fn tokens(&self) -> &[u32] {
        self.tokens.as_slice()
    }

    /// The same request, borrowed.
    #[inline(always)]
    pub fn as_request(&self) -> Request<'_> {
        self.terms.request(self.tokens())
    }
}

impl Terms {
    /// Whether there are no terms.
    #[inline(always)]
    pub(crate) fn are_plain(&self) -> bool {
        self.salt.is_none() && self.rest.is_none()
    }

    /// Whether it takes more than a plan and the tokens to hash the request.
    #[inline(always)]
    pub(crate) fn say_more_than_a_plan(&self) -> bool {
        self.rest.as_ref().is_some_and(|rest| rest.parent.is_some() || !rest.mm_runs.is_empty())
    }

    /// The request of these terms for some tokens.
    #[inline(always)]
    pub(crate) fn request<'a>(&'a self, tokens: &'a [u32]) -> Request<'a> {
        let request = Request { salt: self.salt.as_deref(), ..Request::new(tokens) };
        let Some(rest) = &self.rest else { return request };
        Request {
            lora_name: rest.lora_name.as_deref(),
            mm_runs: &rest.mm_runs,
            block_size: rest.block_size,
            max_blocks: rest.max_blocks.unwrap_or(usize::MAX),
            parent: rest.parent,
            ..request
        }
    }
}

impl PartialEq for OwnedRequest {
    fn eq(&self, other: &Self) -> bool {
        self.as_request() == other.as_request()
    }
}

impl Eq for OwnedRequest {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::digest::SequenceHash;

    #[test]
    fn each_part_is_that_of_the_request() {
        let tokens = [1, 2, 3];
        let runs = [MmRun { mm_hash: 1, offset: 0, length: 2 }];
        let parent = PositionalLineageHash::new(SequenceHash(1), None, 0).unwrap();
        let (owned, plain) = (OwnedRequest::new(tokens), Request::new(&tokens));
        let each = [
            (owned.clone().lora_name("a"), plain.lora_name("a")),
            (owned.clone().salt("a"), plain.salt("a")),
            (owned.clone().mm_runs(runs), plain.mm_runs(&runs)),
            (owned.clone().block_size(3), plain.block_size(3)),
            (owned.clone().max_blocks(3), plain.max_blocks(3)),
            (owned.clone().resume(parent), plain.resume(parent)),
            (OwnedRequest::shared([1, 2].into()), Request::new(&[1, 2])),
        ];
        assert_eq!(owned.as_request(), plain);
        for (owned, request) in &each {
            assert_eq!(owned.as_request(), *request);
            assert_ne!(*request, plain);
        }
        let all = owned.lora_name("a").salt("a").mm_runs(runs).block_size(3).max_blocks(3);
        let expected = plain.lora_name("a").salt("a").mm_runs(&runs).block_size(3).max_blocks(3);
        assert_eq!(all.resume(parent).as_request(), expected.resume(parent));
    }

    #[test]
    fn who_else_holds_the_tokens_makes_no_difference() {
        let tokens: Arc<[u32]> = [1, 2, 3].into();
        let shared = OwnedRequest::shared(Arc::clone(&tokens)).salt("a");
        assert_eq!(shared.tokens().as_ptr(), tokens.as_ptr(), "they are not copied");
        assert_eq!(shared, OwnedRequest::new([1, 2, 3]).salt("a"));
        assert_ne!(shared, OwnedRequest::new([1, 2, 4]).salt("a"));
        assert_ne!(shared, OwnedRequest::new([1, 2, 3]).salt("b"));
        assert_eq!(format!("{:?}", shared.clone()), format!("{shared:?}"));
        drop(tokens);
        assert_eq!(shared.tokens(), [1, 2, 3]);
    }
}
