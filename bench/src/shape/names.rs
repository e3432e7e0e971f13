//! How tables and plots name a call.

use super::Shape;
use std::fmt;

impl Shape {
    /// What names of its kernels end in.
    pub fn end_of_names(&self) -> String {
        match self.invariant {
            None => String::new(),
            Some(0) => ":batch-invariant".to_owned(),
            Some(keys) => format!(":batch-invariant:split-keys={keys}"),
        }
    }

    /// The names of the mask and of the options.
    pub fn mask(&self) -> String {
        let mut names = vec![if self.causal { "causal" } else { "full" }.to_owned()];
        names.extend(self.window.map(|window| format!("window {window}")));
        names.extend(self.softcap.map(|softcap| format!("softcap {softcap}")));
        names.extend(self.alibi.then(|| "ALiBi".to_owned()));
        names.extend(self.sinks.then(|| "sinks".to_owned()));
        names.extend(self.bias.then(|| "bias".to_owned()));
        let blocks = |every| format!("1/{every} of blocks");
        names.extend(self.block_mask.map(blocks));
        names.extend(self.sequences.map(|count| format!("{count} sequences")));
        names.extend(self.uneven.then(|| "uneven".to_owned()));
        names.extend(self.page.map(|keys| format!("pages of {keys}")));
        names.extend(self.prefix.map(|keys| format!("prefix of {keys}")));
        names.extend(self.values_in_keys.then(|| "values in keys".to_owned()));
        names.extend(self.fp8.map(|inputs| inputs.name().to_owned()));
        names.join(" ")
    }

    /// `D`, or `D/DV` if values have a head dim of their own.
    pub fn dim_label(&self) -> String {
        match self.dim_v() {
            dim_v if dim_v == self.dim => dim_v.to_string(),
            dim_v => format!("{}/{dim_v}", self.dim),
        }
    }

    /// `H`, or `H/KV` if queries share heads.
    pub fn heads_label(&self) -> String {
        match self.kv_heads() {
            kv_heads if kv_heads == self.heads => self.heads.to_string(),
            kv_heads => format!("{}/{kv_heads}", self.heads),
        }
    }

    /// `N`, or `N x M` if there are not as many keys as queries.
    pub fn seqlen_label(&self) -> String {
        match self.seqlen_kv() {
            seqlen_kv if seqlen_kv == self.seqlen => self.seqlen.to_string(),
            seqlen_kv => format!("{} x {seqlen_kv}", self.seqlen),
        }
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(
            f,
            "B {} H {} N {} D {} {} {}{}",
            self.batch,
            self.heads_label(),
            self.seqlen_label(),
            self.dim_label(),
            self.dtype,
            self.mask(),
            if self.pass.is_forward() {
                ""
            } else {
                " backward"
            },
        )
    }
}
