//! Points in the work of a Hopper kernel's roles, which a watch notes.

/// A point in a role's work on a block of keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Event {
    /// Producer: it starts to wait until K may be overwritten in the block's stage.
    NeedsK,
    /// Producer: it starts to load K.
    LoadsK,
    /// Producer: it starts to wait until V may be overwritten.
    NeedsV,
    /// Producer: it starts to load V.
    LoadsV,
    /// Consumer: Q of the tile has landed, whose first block this is.
    Q,
    /// Consumer: K has landed.
    K,
    /// Consumer: the scores are issued.
    ScoresIssued,
    /// Consumer: the scores are there.
    Scores,
    /// Consumer: the probabilities are there.
    Softmax,
    /// Consumer: P is rounded to 16 bits.
    P,
    /// Consumer: V has landed.
    V,
    /// Consumer: the product `P V` is issued.
    ProductIssued,
    /// Consumer: the product is there.
    Product,
    /// Consumer: the tile is stored that ended before this block.
    Stored,
}

impl Event {
    /// All points, in the order of their numbers.
    pub const ALL: [Self; 14] = [
        Event::NeedsK,
        Event::LoadsK,
        Event::NeedsV,
        Event::LoadsV,
        Event::Q,
        Event::K,
        Event::ScoresIssued,
        Event::Scores,
        Event::Softmax,
        Event::P,
        Event::V,
        Event::ProductIssued,
        Event::Product,
        Event::Stored,
    ];
}

#[cfg(test)]
mod tests {
    use super::Event;

    #[test]
    fn points_have_their_numbers() {
        for (number, event) in Event::ALL.into_iter().enumerate() {
            assert_eq!(event as usize, number);
        }
    }
}
