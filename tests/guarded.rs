//! Tensors in guarded memory: every write outside an element shows, and every use of what lies outside.

use bytemuck::Pod;
use ferroattn::{Device, Error, Tensor};

/// Elements before and after a tensor.
const MARGIN: usize = 1024;
/// The first value of every byte: a NaN in `f16`, `bf16` and `f32` that no arithmetic produces.
const POISON: u8 = 0xff;

/// Host memory of an `R`-dimensional tensor: margins before and after, and poison wherever no element lies.
pub struct Guarded<T, const R: usize> {
    data: Vec<T>,
    offset: usize,
    shape: [usize; R],
    strides: [isize; R],
}

impl<T: Pod, const R: usize> Guarded<T, R> {
    /// A tensor of poison whose first element is `shift` elements away from 16-byte alignment.
    #[must_use]
    pub fn poisoned(shape: [usize; R], strides: [isize; R], shift: usize) -> Self {
        let reach = |axis: usize| (shape[axis] - 1) as isize * strides[axis];
        let (below, above): (Vec<isize>, Vec<isize>) =
            (0..R).map(reach).partition(|&reach| reach < 0);
        let [below, above] = [below, above].map(|reach| reach.iter().sum::<isize>().unsigned_abs());
        let offset = MARGIN + below.next_multiple_of(16) + shift;
        let poison = bytemuck::pod_read_unaligned(&vec![POISON; size_of::<T>()]);
        Guarded {
            data: vec![poison; offset + above + 1 + MARGIN],
            offset,
            shape,
            strides,
        }
    }

    /// Writes the elements, given in row-major order.
    ///
    /// # Panics
    /// If there are more or fewer than the shape says.
    pub fn fill(&mut self, elements: impl ExactSizeIterator<Item = T>) {
        let positions = self.positions();
        assert_eq!(
            elements.len(),
            positions.len(),
            "elements of shape {:?}",
            self.shape
        );
        for (position, element) in positions.into_iter().zip(elements) {
            self.data[position] = element;
        }
    }

    /// The elements in row-major order.
    pub fn elements(&self) -> impl Iterator<Item = T> {
        self.positions()
            .into_iter()
            .map(|position| self.data[position])
    }

    /// Copies all of the memory to a device.
    ///
    /// # Errors
    /// If the device has not enough memory.
    pub fn upload(&self, device: &Device) -> Result<Tensor<T, R>, Error> {
        let buffer = device.upload(&self.data)?;
        Tensor::from_buffer(buffer, self.offset, self.shape, self.strides)
    }

    /// Copies all of the memory back from a device.
    ///
    /// # Errors
    /// If the device fails.
    pub fn download(&mut self, tensor: Tensor<T, R>) -> Result<(), Error> {
        self.data = tensor.into_buffer().to_vec()?;
        Ok(())
    }

    /// Whether a tensor that was [uploaded](Guarded::upload) still has every bit, margins and gaps
    /// included.
    ///
    /// # Errors
    /// If the device fails.
    pub fn is_unchanged(&self, tensor: Tensor<T, R>) -> Result<bool, Error> {
        let found = tensor.into_buffer().to_vec()?;
        Ok(bytemuck::cast_slice::<T, u8>(&found) == bytemuck::cast_slice::<T, u8>(&self.data))
    }

    /// How far from the first element, in elements, something outside the tensor was overwritten.
    #[must_use]
    pub fn overrun(&self) -> Option<isize> {
        let mut positions = self.positions();
        positions.sort_unstable();
        positions.push(self.data.len());
        let mut start = 0;
        for position in positions {
            let gap: &[u8] = bytemuck::cast_slice(&self.data[start..position]);
            if let Some(byte) = gap.iter().position(|&byte| byte != POISON) {
                return Some((start + byte / size_of::<T>()) as isize - self.offset as isize);
            }
            start = position + 1;
        }
        None
    }

    /// Where the elements lie, in row-major order.
    fn positions(&self) -> Vec<usize> {
        let mut positions = vec![self.offset as isize];
        for (&extent, &stride) in self.shape.iter().zip(&self.strides) {
            let along = (0..extent as isize).map(|index| index * stride);
            let of_axis = { positions.iter() }
                .flat_map(|&start| along.clone().map(move |offset| start + offset));
            positions = of_axis.collect();
        }
        positions
            .into_iter()
            .map(|position| position as usize)
            .collect()
    }
}
