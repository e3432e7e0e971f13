//! Requests whose keys and values grow, in pages.

use crate::model::{DIM, HEADS, KV_HEADS, Model, Packed, VOCABULARY};
use ferroattn::{Append, Attention, Decoder, DecoderShape, Device, Result, Tensor, f16};

/// Keys of a page.
const PAGE: usize = 16;

/// A batch of requests: their pages, and steps that read and extend them.
pub struct Requests {
    /// `[pages, KV_HEADS, PAGE, DIM]`.
    keys: Tensor<f16>,
    values: Tensor<f16>,
    /// It has the pages and the length of each request.
    decoder: Decoder<f16>,
    o: Tensor<f16>,
}

impl Requests {
    /// Requests without tokens, with room for `longest` each.
    pub fn new(device: &Device, batch: usize, longest: usize) -> Result<Self> {
        let most = longest.div_ceil(PAGE);
        let pages = [batch * most, KV_HEADS, PAGE, DIM];
        let shape = DecoderShape {
            q: [batch, HEADS, 1, DIM],
            k_cache: pages,
            v_cache: pages,
            pages: Some(most),
        };
        let mut decoder = Decoder::new(device, shape, &[&Attention::new()])?;
        // An engine gives a page to a request that needs one; here each has its own from the start.
        let table: Vec<i32> = (0..pages[0] as i32).collect();
        if let Some(pages) = decoder.pages_mut() {
            pages.copy_from_slice(&table)?;
        }
        Ok(Requests {
            keys: Tensor::zeros(device, pages)?,
            values: Tensor::zeros(device, pages)?,
            decoder,
            o: Tensor::zeros(device, shape.q)?,
        })
    }

    /// Begins each request with a prompt, and gives the logits behind it.
    pub fn prefill(&mut self, model: &Model, prompts: &[&[u8]]) -> Result<Vec<Vec<f32>>> {
        let (packed, logits) = read(model, prompts)?;
        let table = self.decoder.pages().expect("pages").view();
        let mut first = 0;
        for (request, prompt) in prompts.iter().enumerate() {
            let k = packed.k()?.narrow(2, first, prompt.len())?;
            let v = packed.v()?.narrow(2, first, prompt.len())?;
            let pages = table.narrow(0, request, 1)?;
            let append = Append::new().pages(&pages);
            append.run(&k, &v, &mut self.keys, &mut self.values)?;
            first += prompt.len();
        }
        let lengths: Vec<i32> = prompts.iter().map(|prompt| prompt.len() as i32).collect();
        self.decoder.lengths_mut().copy_from_slice(&lengths)?;
        Ok(logits)
    }

    /// Appends a token to each request, and gives the logits behind it.
    pub fn step(&mut self, model: &Model, tokens: &[u8]) -> Result<Vec<Vec<f32>>> {
        let packed = model.project(&model.embed(tokens)?)?;
        // Requests are entries of the batch here: [1, heads, requests, dim] as [requests, heads, 1, dim].
        let by_request = [2, 1, 0, 3];
        let q = packed.q()?.permute(by_request)?;
        let (k, v) = (
            packed.k()?.permute(by_request)?,
            packed.v()?.permute(by_request)?,
        );
        let caches = (&mut self.keys, &mut self.values);
        self.decoder
            .layer(&Attention::new(), &q, [&k, &v], caches, &mut self.o)?;
        // Behind the last layer; this model has one.
        self.decoder.advance(None)?;
        let o = self.o.view().permute([2, 0, 1, 3])?.try_clone()?;
        rows(&model.logits(o)?)
    }

    /// Tokens of each request.
    pub fn lengths(&self) -> Result<Vec<i32>> {
        self.decoder.lengths().to_vec()
    }
}

/// Offsets of sequences that lie one after another.
pub fn offsets(device: &Device, lengths: impl Iterator<Item = usize>) -> Result<Tensor<i32, 1>> {
    let mut offsets = vec![0];
    offsets.extend(lengths.scan(0, |end, length| {
        *end += length as i32;
        Some(*end)
    }));
    Tensor::new(device, [offsets.len()], &offsets)
}

/// Queries, keys and values of texts, which lie one after another, and the logits behind each text.
pub fn read(model: &Model, texts: &[&[u8]]) -> Result<(Packed, Vec<Vec<f32>>)> {
    let tokens = texts.concat();
    let packed = model.project(&model.embed(&tokens)?)?;
    let offsets = offsets(&model.device, texts.iter().map(|text| text.len()))?;
    // One call: each query sees the keys of its own text.
    let attention = Attention::new().causal(true).packed(&offsets, &offsets);
    let mut o = Tensor::zeros(&model.device, [1, tokens.len(), HEADS, DIM])?;
    let mut lse = Tensor::zeros(&model.device, [1, HEADS, tokens.len()])?;
    // A view of the output has the axes of q; its memory stays row by row.
    let mut by_head = o.view_mut().transpose(1, 2)?;
    attention.forward_into(
        &packed.q()?,
        &packed.k()?,
        &packed.v()?,
        &mut by_head,
        &mut lse,
    )?;
    let logits = rows(&model.logits(o)?)?;
    let ends = texts.iter().scan(0, |end, text| {
        *end += text.len();
        Some(*end)
    });
    let last = ends.map(|end| logits[end - 1].clone()).collect();
    Ok((packed, last))
}

/// Logits on the host, by token.
pub fn rows(logits: &Tensor<f16, 2>) -> Result<Vec<Vec<f32>>> {
    let all = logits.to_vec()?;
    let rows = all.chunks(VOCABULARY);
    Ok(rows
        .map(|row| row.iter().map(|x| x.to_f32()).collect())
        .collect())
}
