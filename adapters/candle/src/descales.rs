//! What multiplies numbers of e4m3, and which tensors hold these.

use crate::memory::{Addresses, Locked, Memory};
use candle_core::{Result, Tensor};
use ferroattn::{RawE4m3, RawE4m3Cache, RawOptions, RawTensor};

/// Which of q, k and v hold e4m3.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum E4m3 {
    /// All of them.
    Inputs,
    /// Keys and values.
    Cache,
}

/// Descales, `[batch, kv_heads]` or, of pages, `[pages, kv_heads]`.
#[derive(Clone, Debug)]
pub(crate) struct Descales {
    /// Of queries, if these hold e4m3.
    pub q: Option<Tensor>,
    pub k: Tensor,
    pub v: Tensor,
    /// Whether each page has descales of its own.
    pub of_pages: bool,
}

impl Descales {
    /// Those of keys and values alone.
    pub fn of_cache([k, v]: [&Tensor; 2], of_pages: bool) -> Self {
        Descales {
            q: None,
            k: k.clone(),
            v: v.clone(),
            of_pages,
        }
    }

    /// Its tensors by name.
    pub fn named(&self) -> impl Iterator<Item = (&'static str, &Tensor)> {
        let q = self.q.iter().map(|q| ("q_descale", q));
        q.chain([("k_descale", &self.k), ("v_descale", &self.v)])
    }

    /// # Errors
    /// If they are not those of the tensors that hold e4m3.
    pub fn expect(&self, e4m3: Option<E4m3>) -> Result<()> {
        match (e4m3, &self.q) {
            (None, _) => candle_core::bail!("descales need k and v of F8E4M3"),
            (Some(E4m3::Cache), Some(_)) => {
                candle_core::bail!("q_descale needs q of F8E4M3; a cache has cache_descales")
            }
            (Some(E4m3::Inputs), None) => {
                candle_core::bail!(
                    "descales of a cache need q of 16 bits; forward_e4m3 has descales"
                )
            }
            _ => Ok(()),
        }
    }

    /// Its tensors, which nobody writes meanwhile.
    pub fn lock(&self) -> LockedDescales<'_> {
        LockedDescales {
            q: self.q.as_ref().map(Locked::new),
            k: Locked::new(&self.k),
            v: Locked::new(&self.v),
            of_pages: self.of_pages,
        }
    }
}

/// Whether descales have this name.
pub(crate) fn is_descale(name: &str) -> bool {
    name.ends_with("_descale")
}

/// Descales in their device's memory.
pub(crate) struct LockedDescales<'a> {
    q: Option<Locked<'a>>,
    k: Locked<'a>,
    v: Locked<'a>,
    of_pages: bool,
}

impl E4m3 {
    /// Tells the library which tensors hold e4m3, and the descales by address.
    pub fn set<'a, M: Memory>(
        self,
        raw: &mut RawOptions,
        addresses: &mut Addresses<'a, M>,
        descales: Option<&'a LockedDescales<'_>>,
    ) -> Result<()> {
        let mut read = |locked: Option<&'a Locked<'_>>| -> Result<Option<RawTensor<2>>> {
            let read = |locked: &'a Locked<'_>| addresses.read(&locked.placed()?);
            locked.map(read).transpose()
        };
        let q = read(descales.and_then(|descales| descales.q.as_ref()))?;
        let k = read(descales.map(|descales| &descales.k))?;
        let v = read(descales.map(|descales| &descales.v))?;
        match self {
            E4m3::Inputs => {
                let mut inputs = RawE4m3::default();
                (inputs.q, inputs.k, inputs.v) = (q, k, v);
                raw.e4m3 = Some(inputs);
            }
            E4m3::Cache => {
                let of_pages = descales.is_some_and(|descales| descales.of_pages);
                raw.e4m3_cache = Some(RawE4m3Cache { k, v, of_pages });
            }
        }
        Ok(())
    }
}
