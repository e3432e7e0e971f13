//! The forward calls on tensors of e4m3: q, k and v, or a cache.

use crate::attention::Attention;
use crate::error::Result;
use crate::options::{RawE4m3, RawE4m3Cache, RawOptions};
use crate::tensor::{Element, Storage, StorageMut, Tensor, TensorBase};
use float8::F8E4M3;

impl<'a> Attention<'a> {
    /// What multiplies q, k and v of e4m3, `[batch, kv_heads]` each, for [`forward_e4m3`](Self::forward_e4m3); query heads of a group share a
    /// number. Default: 1.
    ///
    /// ```
    /// # fn main() -> ferroattn::Result<()> {
    /// use ferroattn::{Attention, F8E4M3, Tensor};
    ///
    /// let x = Tensor::from_vec([1, 1, 1, 2], vec![F8E4M3::from_f32(1.5); 2])?;
    /// let [one, two] = [1.0_f32, 2.0].map(|x| Tensor::from_vec([1, 1], vec![x]));
    /// let (one, two) = (one?, two?);
    /// let (o, _) = Attention::new().descales(&one, &one, &two).forward_e4m3::<f32>(&x, &x, &x)?;
    /// assert_eq!(o.to_vec()?, [3.0; 2]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn descales<'b>(
        &self,
        q: &'b TensorBase<impl Storage<Item = f32>, 2>,
        k: &'b TensorBase<impl Storage<Item = f32>, 2>,
        v: &'b TensorBase<impl Storage<Item = f32>, 2>,
    ) -> Attention<'b>
    where
        'a: 'b,
    {
        self.with(|call| call.tensors.descales = Some([q.into(), k.into(), v.into()]))
    }

    /// [`forward`](Self::forward) of inputs that hold e4m3 already, multiplied by [`descales`](Self::descales): o has any of the other
    /// types, on GPUs, too, and lse is f32. The call is in [FP8](Self::fp8).
    ///
    /// Tensor cores cut sums of e4m3 towards zero, and these values keep their mean. So sums have two levels: o of 384 keys is added to
    /// outer sums, which bounds what it loses by 0.5 %. A power of two scales each column of v, so that numbers change that are 2^7 times smaller
    /// than its largest.
    ///
    /// ```
    /// # fn main() -> ferroattn::Result<()> {
    /// use ferroattn::{Attention, F8E4M3, Tensor};
    ///
    /// let [q, v] = [0.0, 3.0].map(|x| Tensor::from_vec([1, 1, 2, 8], vec![F8E4M3::from_f32(x); 16]));
    /// let (q, v) = (q?, v?);
    /// let (o, lse) = Attention::new().forward_e4m3::<f32>(&q, &q, &v)?;
    /// assert_eq!(o.to_vec()?, [3.0; 16]);
    /// assert_eq!(lse.shape(), [1, 1, 2]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The conditions of [`forward`](Self::forward), or says which option does not go with FP8.
    pub fn forward_e4m3<T: Element>(
        &self,
        q: &TensorBase<impl Storage<Item = F8E4M3>>,
        k: &TensorBase<impl Storage<Item = F8E4M3>>,
        v: &TensorBase<impl Storage<Item = F8E4M3>>,
    ) -> Result<(Tensor<T>, Tensor<f32, 3>)> {
        let problem = self.problem(q.shape(), k.shape(), v.shape())?;
        let mut o = Tensor::zeros(&q.device(), problem.o_shape())?;
        let mut lse = Tensor::zeros(&q.device(), problem.lse_shape())?;
        self.forward_e4m3_into(q, k, v, &mut o, &mut lse)?;
        Ok((o, lse))
    }

    /// Like [`forward_e4m3`](Self::forward_e4m3), into tensors of the caller: see [`forward_into`](Self::forward_into).
    ///
    /// ```
    /// # fn main() -> ferroattn::Result<()> {
    /// use ferroattn::{Attention, F8E4M3, Tensor};
    ///
    /// let x = Tensor::from_vec([1, 1, 2, 8], vec![F8E4M3::from_f32(0.5); 16])?;
    /// let mut o = Tensor::<f32>::zeros(&x.device(), [1, 1, 2, 8])?;
    /// let mut lse = Tensor::zeros(&x.device(), [1, 1, 2])?;
    /// Attention::new().causal(true).forward_e4m3_into(&x, &x, &x, &mut o, &mut lse)?;
    /// assert_eq!(o.to_vec()?, [0.5; 16]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The conditions of [`forward_e4m3`](Self::forward_e4m3).
    pub fn forward_e4m3_into<T: Element>(
        &self,
        q: &TensorBase<impl Storage<Item = F8E4M3>>,
        k: &TensorBase<impl Storage<Item = F8E4M3>>,
        v: &TensorBase<impl Storage<Item = F8E4M3>>,
        o: &mut TensorBase<impl StorageMut<Item = T>>,
        lse: &mut TensorBase<impl StorageMut<Item = f32>, 3>,
    ) -> Result<()> {
        let descales = self.tensors.descales.as_ref();
        let [of_q, of_k, of_v] = [0, 1, 2].map(|i| descales.map(|descales| descales[i].raw()));
        let options = RawOptions {
            e4m3: Some(RawE4m3 {
                q: of_q,
                k: of_k,
                v: of_v,
            }),
            ..RawOptions::default()
        };
        self.forward_tensors(q, k, v, o, lse, options)
    }

    /// Like [`forward`](Self::forward), with k and v of e4m3: a cache of half as many bytes. Keys and values are its numbers times
    /// [descales](Self::cache_descales), q and o have 16 bits, or 32 on the CPU.
    ///
    /// Rows of k and v are multiples of 16 numbers, up to 256 on a GPU, and start at multiples of 16 bytes. A GPU needs compute
    /// capability 9.0. The kernels are for few rows of q: a tile of 32 rows reads the keys once. Biases, masks, custom scores, prefixes and
    /// [`batch_invariant`](Self::batch_invariant) do not go with such a cache, and there are no gradients.
    ///
    /// ```
    /// # fn main() -> ferroattn::Result<()> {
    /// use ferroattn::{Attention, F8E4M3, Tensor};
    ///
    /// let q = Tensor::from_vec([1, 1, 1, 16], vec![0.0_f32; 16])?;
    /// let cache = [[1.0; 16], [3.0; 16]].concat();
    /// let cache = cache.into_iter().map(F8E4M3::from_f32).collect();
    /// let cache = Tensor::from_vec([1, 1, 2, 16], cache)?;
    /// let descales = Tensor::from_vec([1, 1], vec![0.5_f32])?;
    /// let attention = Attention::new().cache_descales(&descales, &descales);
    /// let (o, _) = attention.forward_e4m3_cache(&q, &cache, &cache)?;
    /// assert_eq!(o.to_vec()?, [1.0; 16]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The conditions of [`forward`](Self::forward).
    pub fn forward_e4m3_cache<T: Element>(
        &self,
        q: &TensorBase<impl Storage<Item = T>>,
        k: &TensorBase<impl Storage<Item = F8E4M3>>,
        v: &TensorBase<impl Storage<Item = F8E4M3>>,
    ) -> Result<(Tensor<T>, Tensor<f32, 3>)> {
        let problem = self.problem(q.shape(), k.shape(), v.shape())?;
        let mut o = Tensor::zeros(&q.device(), problem.o_shape())?;
        let mut lse = Tensor::zeros(&q.device(), problem.lse_shape())?;
        self.forward_e4m3_cache_into(q, k, v, &mut o, &mut lse)?;
        Ok((o, lse))
    }

    /// Like [`forward_e4m3_cache`](Self::forward_e4m3_cache), into [tensors of the caller](Self::forward_into).
    ///
    /// # Errors
    /// The conditions of [`forward`](Self::forward).
    pub fn forward_e4m3_cache_into<T: Element>(
        &self,
        q: &TensorBase<impl Storage<Item = T>>,
        k: &TensorBase<impl Storage<Item = F8E4M3>>,
        v: &TensorBase<impl Storage<Item = F8E4M3>>,
        o: &mut TensorBase<impl StorageMut<Item = T>>,
        lse: &mut TensorBase<impl StorageMut<Item = f32>, 3>,
    ) -> Result<()> {
        let options = RawOptions {
            e4m3_cache: Some(RawE4m3Cache::default()),
            ..RawOptions::default()
        };
        self.forward_tensors(q, k, v, o, lse, options)
    }
}
