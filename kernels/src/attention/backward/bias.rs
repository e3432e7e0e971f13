//! Zeros in the place of the bias's gradient, before kernels add to it.

use crate::abi::BackwardParams;
use crate::ptx::{global, special};

/// Writes zeros for the block's query of a head of a batch entry, with `W` warps a block.
///
/// # Safety
/// Launched as [`BackwardParams`] and the kernel's row of the [catalog](crate::catalog) say, with a block for each query of
/// each head of each batch entry, of axes that do not repeat.
#[inline(always)]
pub unsafe fn zero_bias<const W: u32>(params: &BackwardParams) {
    let (d_bias, forward) = (&params.d_bias, &params.forward);
    let [heads, queries] = [
        (d_bias.head_stride, forward.heads),
        (d_bias.query_stride, forward.seqlen_q),
    ]
    .map(|(stride, extent)| if stride == 0 { 1 } else { extent });
    let block = special::block();
    let (head, query) = (block / queries, i64::from(block % queries));
    let (batch, head) = (i64::from(head / heads), i64::from(head % heads));
    let place =
        batch * d_bias.batch_stride + head * d_bias.head_stride + query * d_bias.query_stride;
    let row = d_bias.address.wrapping_add_signed(4 * place);
    // SAFETY: the launch has this many threads a block; the row is the block's own.
    unsafe {
        let mut key = special::thread(32 * W);
        while key < forward.seqlen_kv {
            global::store_f32(row + 4 * u64::from(key), 0.0);
            key += 32 * W;
        }
    }
}
