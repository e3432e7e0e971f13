//! Where a tensor has its elements for pairs of query and key.

use crate::abi::PairsRef;

/// The elements of one query head.
#[derive(Clone, Copy, Default)]
pub struct Pairs {
    address: u64,
    /// Elements from a query to the next one.
    query_stride: i64,
    /// Bytes from a query to the next one.
    pub query_bytes: i64,
    bytes: u32,
}

impl Pairs {
    /// The elements, of so many bytes, of a batch entry's query head.
    #[inline(always)]
    pub fn new(tensor: &PairsRef, [batch, head]: [u32; 2], bytes: u32) -> Self {
        let place = i64::from(batch) * tensor.batch_stride + i64::from(head) * tensor.head_stride;
        Pairs {
            address: tensor.address.wrapping_add_signed(i64::from(bytes) * place),
            query_stride: tensor.query_stride,
            query_bytes: i64::from(bytes) * tensor.query_stride,
            bytes,
        }
    }

    /// Address of an element of a query.
    #[inline(always)]
    pub fn at(self, query: u32, element: u32) -> u64 {
        let row = self
            .address
            .wrapping_add_signed(i64::from(query) * self.query_bytes);
        row + u64::from(self.bytes) * u64::from(element)
    }

    /// [`at`](Self::at), by more instructions that hold two registers less over a loop: the stride is a parameter, its bytes are not.
    #[inline(always)]
    pub fn at_by_stride(self, query: u32, element: u32) -> u64 {
        let place = i64::from(query) * self.query_stride + i64::from(element);
        self.address
            .wrapping_add_signed(i64::from(self.bytes) * place)
    }
}
