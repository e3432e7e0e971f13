//! The sliding window.

use std::fmt;
use std::str::FromStr;

/// How far from its own place a query sees keys; as text `LEFT,RIGHT`, with `-` for no bound.
///
/// Query `i` sees keys `i + offset - left ..= i + offset + right`, with `offset = seqlen_kv - seqlen_q`.
///
/// ```
/// use ferroattn::Window;
///
/// let window = Window { left: Some(1024), right: None };
/// assert_eq!(window.to_string(), "1024,-");
/// assert_eq!("1024,-".parse(), Ok(window));
/// assert_eq!(",".parse(), Ok(Window::NONE));
/// assert!("-1,0".parse::<Window>().is_err());
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Window {
    /// Keys before the query's own place; `None` for all.
    pub left: Option<usize>,
    /// Keys after the query's own place; `None` for all.
    pub right: Option<usize>,
}

impl Window {
    /// No bound on either side.
    pub const NONE: Window = Window {
        left: None,
        right: None,
    };

    /// No bound before the query's own place, which ends it.
    pub(crate) const CAUSAL: Window = Window {
        left: None,
        right: Some(0),
    };
}

/// Text that is no window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it must be LEFT,RIGHT: whole numbers, or - for no bound")]
pub struct ParseWindowError;

impl FromStr for Window {
    type Err = ParseWindowError;

    fn from_str(text: &str) -> Result<Self, ParseWindowError> {
        let bound = |text: &str| match text {
            "" | "-" => Ok(None),
            number => number.parse().map(Some).map_err(|_| ParseWindowError),
        };
        let (left, right) = text.split_once(',').ok_or(ParseWindowError)?;
        Ok(Window {
            left: bound(left)?,
            right: bound(right)?,
        })
    }
}

impl fmt::Display for Window {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let bound = |bound: Option<usize>| bound.map_or("-".to_owned(), |keys| keys.to_string());
        write!(f, "{},{}", bound(self.left), bound(self.right))
    }
}
