//! Text by the largest logits, on requests that grow and by reading all anew.

use crate::model::Model;
use crate::requests::{Requests, read};
use ferroattn::Result;

/// The token of the largest logit.
pub fn greedy(logits: &[f32]) -> u8 {
    let tokens = logits.iter().enumerate();
    let best = tokens.max_by(|a, b| a.1.total_cmp(b.1));
    best.expect("a vocabulary").0 as u8
}

/// Tokens behind each prompt: a prefill, then a token of each request at a time.
pub fn generate(model: &Model, prompts: &[&[u8]], count: usize) -> Result<Vec<Vec<u8>>> {
    let longest = prompts.iter().map(|prompt| prompt.len()).max().unwrap_or(0);
    let mut requests = Requests::new(&model.device, prompts.len(), longest + count)?;
    let mut logits = requests.prefill(model, prompts)?;
    let mut generated = vec![Vec::new(); prompts.len()];
    for step in 0..count {
        let tokens: Vec<u8> = logits.iter().map(|logits| greedy(logits)).collect();
        for (text, &token) in generated.iter_mut().zip(&tokens) {
            text.push(token);
        }
        if step + 1 < count {
            logits = requests.step(model, &tokens)?;
        }
    }
    Ok(generated)
}

/// What [`generate`] gives, without a cache: each token is of all tokens before.
pub fn generate_anew(model: &Model, prompts: &[&[u8]], count: usize) -> Result<Vec<Vec<u8>>> {
    let mut texts: Vec<Vec<u8>> = prompts.iter().map(|prompt| prompt.to_vec()).collect();
    for _ in 0..count {
        let so_far: Vec<&[u8]> = texts.iter().map(Vec::as_slice).collect();
        let (_, logits) = read(model, &so_far)?;
        for (text, logits) in texts.iter_mut().zip(&logits) {
            text.push(greedy(logits));
        }
    }
    let behind = texts.iter().zip(prompts);
    Ok(behind
        .map(|(text, prompt)| text[prompt.len()..].to_vec())
        .collect())
}
