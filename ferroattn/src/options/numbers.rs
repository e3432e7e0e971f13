//! Numbers of rows and entries that a call brings in memory: offsets, lengths, first keys, entries of a cache.

use super::RawOptions;
use crate::error::{Error, Result};
use crate::forward::Problem;
use crate::tensor::{RawTensor, expect_shape};

/// Numbers `i32`, from 0 on, with stride 1.
#[derive(Clone, Copy, Debug)]
pub(super) struct Numbers {
    pub argument: &'static str,
    pub tensor: RawTensor<1>,
    /// How many there must be.
    count: usize,
    /// The largest one that is allowed.
    most: usize,
    /// Whether none is below the one before it.
    rise: bool,
}

impl RawOptions {
    /// All numbers of a call on a cache of so many entries of keys and values.
    ///
    /// # Errors
    /// If the sequences cannot be packed.
    pub(super) fn numbers(&self, p: &Problem, cache: usize) -> Result<Vec<Numbers>> {
        let mut all = Vec::new();
        if let Some(sequences) = &self.sequences {
            let count = sequences.count(p.batch)?;
            let rows = [p.seqlen_q, self.keys_of_entry(p)].into_iter();
            let parts = sequences.named().into_iter().zip(sequences.have_offsets());
            let skipped = usize::from(sequences.has_all_queries());
            all.extend(
                parts
                    .zip(rows)
                    .skip(skipped)
                    .map(|(((argument, &tensor), rise), most)| Numbers {
                        argument,
                        tensor,
                        count: count + usize::from(rise),
                        most,
                        rise,
                    }),
            );
        }
        let of_entries = [
            ("first_keys", self.first_keys, p.seqlen_kv),
            ("cache_entries", self.cache_entries, cache.saturating_sub(1)),
        ];
        all.extend(
            of_entries
                .into_iter()
                .filter_map(|(argument, tensor, most)| {
                    Some(Numbers {
                        argument,
                        tensor: tensor?,
                        count: p.batch,
                        most,
                        rise: false,
                    })
                }),
        );
        Ok(all)
    }
}

impl Numbers {
    /// Checks shape and stride.
    pub fn validate(&self) -> Result<()> {
        expect_shape(self.argument, &[self.count], &self.tensor.shape)?;
        self.tensor.expect_rows(self.argument, "its axis")
    }

    /// Checks the numbers themselves.
    pub fn expect(&self, numbers: &[i32]) -> Result<()> {
        let mut least = 0;
        for (index, &value) in numbers.iter().enumerate() {
            if value < least || value as usize > self.most {
                return Err(Error::Entry {
                    argument: self.argument,
                    index,
                    value,
                    min: least,
                    max: self.most,
                });
            }
            if self.rise {
                least = value;
            }
        }
        Ok(())
    }
}
