//! Keys and values that all entries of a batch share.

use super::failure::Failure;
use super::forward::RawInputs;
use super::options::{Form, count, numbers};
use super::tensor::{Tensor, Type};
use super::value::Arguments;
use ferroattn::{RawPrefix, RawTensor};

/// A prefix as an operator takes it; none without tensors.
#[derive(Debug, Default)]
pub struct Prefix {
    k: Option<Tensor>,
    v: Option<Tensor>,
    pages: Option<Tensor>,
    /// Keys of its pages; none for full ones.
    keys: Option<i64>,
}

impl Prefix {
    /// Its part of an operator's signature.
    pub const SIGNATURE: &'static str =
        "Tensor? prefix_k, Tensor? prefix_v, Tensor? prefix_pages, int? prefix_keys";

    /// Reads it.
    pub fn read(arguments: &mut Arguments) -> Result<Self, Failure> {
        let [k, v, pages] = [(); 3].map(|()| arguments.optional_tensor());
        let keys = arguments.optional_int();
        Ok(Prefix {
            k: k.map(Tensor::in_rows).transpose()?,
            v: v.map(Tensor::in_rows).transpose()?,
            pages,
            keys,
        })
    }

    /// The prefix by address, beside inputs of this form.
    pub fn raw(&self, form: Form, inputs: &RawInputs) -> Result<Option<RawPrefix>, Failure> {
        let RawInputs { dtype, place, .. } = *inputs;
        let tensor = |name, tensor: &Tensor| -> Result<RawTensor, Failure> {
            form.expect(name, tensor)?;
            tensor.expect(name, Type::Number(dtype), place)?;
            Ok(tensor.raw(form.axes()))
        };
        let table = numbers("prefix_pages", self.pages.as_ref(), place)?;
        match (&self.k, &self.v, table, self.keys) {
            (None, None, None, None) => Ok(None),
            (None, None, Some(table), keys) => {
                let full = inputs.k.shape[2].saturating_mul(table.shape[0]);
                let keys = keys.map_or(Ok(full), |keys| count("prefix_keys", keys))?;
                Ok(Some(RawPrefix::Pages { table, keys }))
            }
            (Some(k), Some(v), None, None) => Ok(Some(RawPrefix::Keys {
                dtype,
                k: tensor("the prefix's k", k)?,
                v: tensor("the prefix's v", v)?,
            })),
            (None, None, None, Some(_)) => Err(Failure::value("prefix_keys needs prefix_pages")),
            (Some(_), Some(_), ..) => Err(Failure::value(
                "prefix cannot be combined with prefix_pages or prefix_keys",
            )),
            _ => Err(Failure::value("a prefix needs both keys and values")),
        }
    }
}
