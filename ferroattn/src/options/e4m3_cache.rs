//! Keys and values of e4m3 beside queries of 16 bits.

use crate::error::Result;
use crate::tensor::{RawTensor, expect_shape};
use kernels::abi::DescalesRef;

/// A [cache of e4m3](crate::Attention::forward_e4m3_cache) by address: k and v of a call hold bytes, [`F8E4M3`](crate::F8E4M3), and
/// stand for these numbers times a descale.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct RawE4m3Cache {
    /// Descales of k, `f32[batch, kv_heads]` or, of pages, `f32[pages, kv_heads]`; all are 1 without them.
    pub k: Option<RawTensor<2>>,
    /// Descales of v, likewise.
    pub v: Option<RawTensor<2>>,
    /// Whether each page has descales of its own.
    pub of_pages: bool,
}

impl RawE4m3Cache {
    /// This cache, with the descales of others where it has none.
    pub(crate) fn or(self, others: Option<Self>) -> Self {
        match (self.k, self.v) {
            (None, None) => others.unwrap_or(self),
            _ => self,
        }
    }

    /// Checks that descales have a shape.
    pub(crate) fn expect_descales(&self, shape: [usize; 2]) -> Result<()> {
        for (argument, descales) in [("k_descales", &self.k), ("v_descales", &self.v)] {
            if let Some(descales) = descales {
                expect_shape(argument, &shape, &descales.shape)?;
                descales.expect_span(argument)?;
            }
        }
        Ok(())
    }

    /// Descales as kernels read them.
    pub(crate) fn of_kernels(&self) -> [DescalesRef; 2] {
        [self.k, self.v].map(|descales| descales_ref(descales, self.of_pages))
    }
}

/// Descales as kernels read them; of each page, or of each entry of the batch.
pub(crate) fn descales_ref(descales: Option<RawTensor<2>>, of_pages: bool) -> DescalesRef {
    let Some(descales) = descales else {
        return DescalesRef::default();
    };
    let [batch_stride, head_stride] = descales.used_strides().map(|stride| stride as i64);
    DescalesRef {
        address: descales.address,
        batch_stride,
        head_stride,
        of_pages: of_pages.into(),
    }
}

/// Keys or values of e4m3 as a tensor of pairs, which kernels copy like elements of 16 bits. Rows are whole vectors.
pub(crate) fn in_pairs(tensor: RawTensor) -> RawTensor {
    let [batch, heads, rows, dim] = tensor.shape;
    let [batch_stride, head_stride, row_stride, _] = tensor.used_strides().map(|stride| stride / 2);
    RawTensor {
        address: tensor.address,
        shape: [batch, heads, rows, dim / 2],
        strides: [batch_stride, head_stride, row_stride, 1],
    }
}
