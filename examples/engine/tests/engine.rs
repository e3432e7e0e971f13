//! Decoding on a cache gives what a prefill of the whole text gives; training lowers the loss.

use engine::cache::Cache;
use engine::generate::{Decoder, generate, prefill};
use engine::model::Model;
use engine::train::Trainer;
use ferroattn::Device;

/// Some tokens that follow from a seed.
fn text(seed: usize, len: usize) -> Vec<u8> {
    (0..len)
        .map(|i| ((i * i * 7 + seed * 13 + i) % 32) as u8)
        .collect()
}

#[test]
fn decoding_is_prefill_of_all() {
    let device = Device::cpu();
    let model = Model::new(&device, 3).expect("memory");
    let texts = [text(1, 9), text(2, 14), text(3, 6)];
    let prompts: Vec<&[u8]> = texts.iter().map(|text| &text[..text.len() - 5]).collect();
    let mut cache = Cache::new(&device, 3, 20).expect("memory");
    let mut decoder = Decoder::new(&device, 3).expect("memory");
    let mut found = prefill(&model, &mut cache, &prompts).expect("prefilled");
    for behind in (0..=5).rev() {
        let so_far: Vec<&[u8]> = texts
            .iter()
            .map(|text| &text[..text.len() - behind])
            .collect();
        let mut other = Cache::new(&device, 3, 20).expect("memory");
        let expected = prefill(&model, &mut other, &so_far).expect("prefilled");
        for (found, expected) in found.iter().flatten().zip(expected.iter().flatten()) {
            assert!(
                (found - expected).abs() < 1e-2,
                "{behind}: {found} for {expected}"
            );
        }
        if behind > 0 {
            let tokens: Vec<u8> = texts.iter().map(|text| text[text.len() - behind]).collect();
            found = decoder.step(&model, &mut cache, &tokens).expect("decoded");
        }
    }
    assert_eq!(cache.lengths, [9, 14, 6]);
}

/// A text in which each token has one behind it, learnt by heart.
#[test]
fn training_learns_a_text() {
    let mut trainer = Trainer::new(Model::new(&Device::cpu(), 1).expect("memory")).expect("read");
    let cycle: Vec<u8> = (0..40).map(|i| (i * 5 % 24) as u8).collect();
    let texts = [&cycle[..], &cycle[3..20], &cycle[11..14]];
    let first = trainer.step(&texts, 1.0).expect("a step");
    let losses: Vec<f32> = (0..200)
        .map(|_| trainer.step(&texts, 1.0).expect("a step"))
        .collect();
    let last = losses[199];
    assert!(last < 0.1 * first, "{first} to {last}");
    let prompts = [&cycle[..2], &cycle[..5]];
    let generated = generate(&trainer.model, &prompts, 6).expect("generated");
    assert_eq!(generated, [cycle[2..8].to_vec(), cycle[5..11].to_vec()]);
}
