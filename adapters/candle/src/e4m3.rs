//! The options and the call of tensors of e4m3.

use crate::Attention;
use crate::descales::{Descales, E4m3};
use candle_core::{DType, Result, Tensor};

impl Attention {
    /// What multiplies q, k and v of [`forward_e4m3`](Self::forward_e4m3), f32 `[batch, kv_heads]` each, of any strides; query heads of a
    /// group share a number. Default: 1.
    pub fn descales(self, q: &Tensor, k: &Tensor, v: &Tensor) -> Self {
        let q = Some(q.clone());
        let of_cache = Descales::of_cache([k, v], false);
        self.with_descales(Descales { q, ..of_cache })
    }

    /// What multiplies k and v of a cache of e4m3, f32 `[batch, kv_heads]` each, of any strides. Default: 1.
    ///
    /// k and v of [`forward`](Self::forward) and of functions with pages may be such a cache: of F8E4M3, beside q of other types, which is o's.
    /// Rows are multiples of 16 numbers, and start at multiples of 16 bytes. Biases, masks, prefixes and
    /// [`batch_invariant`](Self::batch_invariant) do not go with it, and there are no gradients.
    ///
    /// ```
    /// # fn main() -> candle_core::Result<()> {
    /// use candle_core::{DType, Device, Tensor};
    /// use ferroattn_candle::Attention;
    ///
    /// let device = Device::Cpu;
    /// let q = Tensor::zeros((1, 1, 1, 16), DType::F16, &device)?;
    /// let cache = Tensor::new(&[[1_f32; 16], [3.0; 16]], &device)?.to_dtype(DType::F8E4M3)?.reshape((1, 2, 1, 16))?;
    /// // One number for all heads.
    /// let descale = Tensor::new(&[[0.5_f32]], &device)?.broadcast_as((1, 1))?;
    /// let o = Attention::new().cache_descales(&descale, &descale).forward(&q, &cache, &cache)?;
    /// assert_eq!(o.to_dtype(DType::F32)?.flatten_all()?.to_vec1::<f32>()?, [1.0; 16]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn cache_descales(self, k: &Tensor, v: &Tensor) -> Self {
        self.with_descales(Descales::of_cache([k, v], false))
    }

    /// [`cache_descales`](Self::cache_descales) of each [page](Self::pages), f32 `[pages, kv_heads]`; pages have 16 keys or more.
    pub fn page_descales(self, k: &Tensor, v: &Tensor) -> Self {
        self.with_descales(Descales::of_cache([k, v], true))
    }

    fn with_descales(mut self, descales: Descales) -> Self {
        self.tensors.descales = Some(descales);
        self
    }

    /// [`forward`](Self::forward) of q, k and v of F8E4M3, multiplied by [`descales`](Self::descales): o is F16, BF16 or F32.
    ///
    /// The call is in [FP8](Self::fp8), which may rotate q and k. There are no gradients.
    ///
    /// ```
    /// # fn main() -> candle_core::Result<()> {
    /// use candle_core::{DType, Device, Tensor};
    /// use ferroattn_candle::Attention;
    ///
    /// let x = Tensor::full(1.5_f32, (1, 1, 1, 8), &Device::Cpu)?.to_dtype(DType::F8E4M3)?;
    /// let [one, two] = [1_f32, 2.0].map(|descale| Tensor::full(descale, (1, 1), &Device::Cpu));
    /// let (one, two) = (one?, two?);
    /// let o = Attention::new().descales(&one, &one, &two).forward_e4m3(&x, &x, &x, DType::F32)?;
    /// assert_eq!(o.flatten_all()?.to_vec1::<f32>()?, [3.0; 8]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The conditions of [`forward`](Self::forward), or says which option does not go with FP8.
    pub fn forward_e4m3(&self, q: &Tensor, k: &Tensor, v: &Tensor, dtype: DType) -> Result<Tensor> {
        self.forward_of([q, k, v], dtype, Some(E4m3::Inputs))
    }
}
