//! A call's two passes, on any device.

use crate::descales::E4m3;
use crate::memory::{self, Addresses, Locked, Memory, Placed, in_workspace};
use crate::tensors::{Tensors, dtype};
use candle_core::{DType, Device, Error, Result, Shape, Tensor};
use ferroattn::{Problem, RawBackward, RawForward, RawTensor};
use std::sync::OnceLock;

/// A call: what it computes, and what its forward pass leaves for the backward pass.
#[derive(Debug)]
pub(crate) struct Call {
    pub options: ferroattn::Attention<'static>,
    pub tensors: Tensors,
    pub problem: Problem,
    /// Type of o, and of q, k and v where these do not hold e4m3.
    pub dtype: DType,
    pub e4m3: Option<E4m3>,
    /// Row log-sum-exp, `[batch, heads, seqlen_q]`.
    pub lse: OnceLock<Tensor>,
}

/// Gradients of a call's tensors, of their shapes.
pub(crate) struct Gradients {
    /// Of q, k and v.
    pub inputs: [Tensor; 3],
    /// In f32.
    pub bias: Option<Tensor>,
    /// In f32.
    pub sinks: Option<Tensor>,
}

impl Call {
    /// The output for q, k and v, and its shape; keeps lse.
    pub fn forward<M: Memory>(
        &self,
        memory: &M,
        [q, k, v]: [Placed<'_, M>; 3],
    ) -> Result<(M::Storage, Shape)> {
        let (p, dtype) = (&self.problem, dtype(self.dtype)?);
        let [o_shape, lse_shape] = [self.shape(p.o_shape()), p.lse_shape().to_vec().into()];
        let mut o = memory.alloc(self.dtype, o_shape.elem_count())?;
        let mut lse = memory.alloc(DType::F32, lse_shape.elem_count())?;
        let (locked, device) = (self.tensors.lock(), memory.device()?);
        let mut addresses = Addresses::new(memory);
        let args = RawForward {
            q: self.read(&mut addresses, &q)?,
            k: self.read(&mut addresses, &k)?,
            v: self.read(&mut addresses, &v)?,
            o: self.write(&mut addresses, &mut o, p.o_shape())?,
            lse: addresses.write(&mut lse, p.lse_shape())?,
            options: locked.raw(&mut addresses, p, self.e4m3)?,
        };
        let plan = self.options.plan(device.facts(), dtype, &args);
        let bytes = plan.map_err(Error::wrap)?.workspace_bytes;
        in_workspace(memory, bytes, |workspace| {
            let stream = memory.stream();
            // SAFETY: candle's layouts lie in their storages, which are borrowed and, on a GPU, freed in the stream's
            // order. Types were compared. o and lse are new, and nobody else has them.
            unsafe {
                self.options
                    .forward_raw_in(&device, dtype, &args, workspace, stream)
            }
        })?;
        drop(addresses);
        // Candle runs an operation's forward pass once.
        let _ = self.lse.set(memory::tensor::<M>(lse, lse_shape));
        Ok((o, o_shape))
    }

    /// The gradients of q, k and v, and of bias and sinks if these are wanted.
    pub fn backward(
        &self,
        [q, k, v]: [&Tensor; 3],
        [o, d_o]: [&Tensor; 2],
        of_options: bool,
    ) -> Result<Gradients> {
        if self.tensors.has_cache() {
            candle_core::bail!("attention to pages or entries of a cache has no gradients")
        }
        let tensors = [q, k, v, o, d_o];
        match q.device() {
            Device::Cpu => self.backward_in(&memory::Host, tensors, of_options),
            #[cfg(feature = "cuda")]
            Device::Cuda(device) => {
                self.backward_in(&memory::Cuda::new(device), tensors, of_options)
            }
            device => candle_core::bail!("attention does not run on {:?}", device.location()),
        }
    }

    fn backward_in<M: Memory>(
        &self,
        memory: &M,
        tensors: [&Tensor; 5],
        of_options: bool,
    ) -> Result<Gradients> {
        let (p, dtype) = (&self.problem, dtype(self.dtype)?);
        let Some(lse) = self.lse.get() else {
            candle_core::bail!("attention has no gradients before its forward pass")
        };
        let Tensors { bias, sinks, .. } = &self.tensors;
        let bias_shape = bias.as_ref().filter(|_| of_options).map(Tensor::dims4);
        let bias_shape = bias_shape.transpose()?.map(<[usize; 4]>::from);
        let sinks_shape = sinks.as_ref().filter(|_| of_options).map(|_| [p.heads]);
        let shapes = [p.q_shape(), p.k_shape(), p.v_shape()];

        let alloc = |dtype, shape: &[usize]| memory.alloc(dtype, shape.iter().product());
        let mut d_bias = bias_shape
            .map(|shape| alloc(DType::F32, &shape))
            .transpose()?;
        let mut d_sinks = sinks_shape
            .map(|shape| alloc(DType::F32, &shape))
            .transpose()?;
        let [dq, dk, dv] = shapes.map(|shape| alloc(self.dtype, &shape));
        let (mut dq, mut dk, mut dv) = (dq?, dk?, dv?);

        let (locked, locked_lse) = (self.tensors.lock(), Locked::new(lse));
        let [q, k, v, o, d_o] = tensors.map(Locked::new);
        let device = memory.device()?;
        let mut addresses = Addresses::new(memory);
        let forward = RawForward {
            q: self.read(&mut addresses, &q.placed()?)?,
            k: self.read(&mut addresses, &k.placed()?)?,
            v: self.read(&mut addresses, &v.placed()?)?,
            o: self.read(&mut addresses, &o.placed()?)?,
            lse: addresses.read(&locked_lse.placed()?)?,
            options: locked.raw(&mut addresses, p, self.e4m3)?,
        };
        let d_o = self.read(&mut addresses, &d_o.placed()?)?;
        let places = [
            self.write(&mut addresses, &mut dq, shapes[0])?,
            self.write(&mut addresses, &mut dk, shapes[1])?,
            self.write(&mut addresses, &mut dv, shapes[2])?,
        ];
        let mut args = RawBackward::new(&forward, d_o, places);
        if let Some((storage, shape)) = d_bias.as_mut().zip(bias_shape) {
            args.d_bias = Some(addresses.write(storage, shape)?);
        }
        if let Some((storage, shape)) = d_sinks.as_mut().zip(sinks_shape) {
            args.d_sinks = Some(addresses.write(storage, shape)?);
        }
        let plan = self.options.backward_plan(device.facts(), dtype, &args);
        let bytes = plan.map_err(Error::wrap)?.workspace_bytes;
        in_workspace(memory, bytes, |workspace| {
            let stream = memory.stream();
            // SAFETY: candle's layouts lie in their storages, which are borrowed and, on a GPU, freed in the stream's
            // order. Types were compared. Gradients are new, and nobody else has them.
            unsafe {
                self.options
                    .backward_raw_in(&device, dtype, &args, workspace, stream)
            }
        })?;
        drop(addresses);
        let tensor = |storage, shape| memory::tensor::<M>(storage, self.shape(shape));
        Ok(Gradients {
            inputs: [
                tensor(dq, shapes[0]),
                tensor(dk, shapes[1]),
                tensor(dv, shapes[2]),
            ],
            bias: d_bias
                .zip(bias_shape)
                .map(|(storage, shape)| memory::tensor::<M>(storage, shape.to_vec())),
            sinks: d_sinks.map(|storage| memory::tensor::<M>(storage, p.heads)),
        })
    }

    /// Rows of heads in candle's order of axes.
    fn shape(&self, [batch, heads, rows, dim]: [usize; 4]) -> Shape {
        match self.tensors.is_packed() {
            true => (rows, heads, dim).into(),
            false => (batch, rows, heads, dim).into(),
        }
    }

    /// A tensor of candle's order of axes, in the library's: of packed rows it has three.
    fn read<'a, M: Memory>(
        &self,
        addresses: &mut Addresses<'a, M>,
        placed: &Placed<'a, M>,
    ) -> Result<RawTensor> {
        match placed.layout.dims().len() {
            3 => Ok(one_entry(addresses.read(placed)?)),
            _ => Ok(heads_first(addresses.read(placed)?)),
        }
    }

    /// A new tensor of this shape in the library's order of axes, row-major in candle's.
    fn write<'a, M: Memory>(
        &self,
        addresses: &mut Addresses<'a, M>,
        storage: &'a mut M::Storage,
        [batch, heads, rows, dim]: [usize; 4],
    ) -> Result<RawTensor> {
        match self.tensors.is_packed() {
            true => Ok(one_entry(addresses.write(storage, [rows, heads, dim])?)),
            false => Ok(heads_first(
                addresses.write(storage, [batch, rows, heads, dim])?,
            )),
        }
    }
}

/// `[batch, rows, heads, dim]` with its heads before its rows.
pub(crate) fn heads_first(tensor: RawTensor) -> RawTensor {
    let ([batch, rows, heads, dim], [of_batch, of_row, of_head, of_dim]) =
        (tensor.shape, tensor.strides);
    RawTensor {
        address: tensor.address,
        shape: [batch, heads, rows, dim],
        strides: [of_batch, of_head, of_row, of_dim],
    }
}

/// `[rows, heads, dim]` as the one entry of a batch.
pub(crate) fn one_entry(tensor: RawTensor<3>) -> RawTensor {
    let ([rows, heads, dim], [of_row, of_head, of_dim]) = (tensor.shape, tensor.strides);
    RawTensor {
        address: tensor.address,
        shape: [1, heads, rows, dim],
        strides: [0, of_head, of_row, of_dim],
    }
}
