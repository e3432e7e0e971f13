//! Intervals of numbers.

/// Consecutive keys or queries, as numbers.
pub trait Interval: Copy + Default {
    /// Whether an interval may start after 0.
    const HAS_START: bool;

    /// The first.
    fn start(self) -> i32;

    /// The one after the last: not above `start` if there are none.
    fn end(self) -> i32;

    /// The interval counted from number `origin`.
    fn counted_from(self, origin: i32) -> Self;

    /// Whether it contains a number.
    fn contains(self, number: i32) -> bool;

    /// [`contains`](Self::contains) without a branch: loads of many numbers are then on their way at a time, and take registers.
    #[inline(always)]
    fn contains_by_load(self, number: i32) -> bool {
        self.contains(number)
    }

    /// Whether intervals may have gaps.
    #[inline(always)]
    fn may_have_gaps() -> bool {
        false
    }

    /// Whether numbers between its ends may be missing.
    #[inline(always)]
    fn has_gaps(self) -> bool {
        false
    }

    /// All numbers from 0 on, where intervals may have gaps.
    #[inline(always)]
    fn unbounded() -> Self {
        Self::default()
    }
}

/// All numbers below an end.
#[derive(Clone, Copy, Debug, Default)]
pub struct Prefix {
    /// The first number outside.
    pub end: i32,
}

impl Interval for Prefix {
    const HAS_START: bool = false;

    #[inline(always)]
    fn start(self) -> i32 {
        0
    }

    #[inline(always)]
    fn end(self) -> i32 {
        self.end
    }

    #[inline(always)]
    fn counted_from(self, origin: i32) -> Self {
        Prefix {
            end: self.end - origin,
        }
    }

    #[inline(always)]
    fn contains(self, number: i32) -> bool {
        number < self.end
    }
}

/// The numbers from a start to an end.
#[derive(Clone, Copy, Debug, Default)]
pub struct Span {
    /// The first number inside.
    pub start: i32,
    /// The first number after it that is outside.
    pub end: i32,
}

impl Interval for Span {
    const HAS_START: bool = true;

    #[inline(always)]
    fn start(self) -> i32 {
        self.start
    }

    #[inline(always)]
    fn end(self) -> i32 {
        self.end
    }

    #[inline(always)]
    fn counted_from(self, origin: i32) -> Self {
        Span {
            start: self.start - origin,
            end: self.end - origin,
        }
    }

    #[inline(always)]
    fn contains(self, number: i32) -> bool {
        self.start <= number && number < self.end
    }
}
