//! Learns a text by heart, then goes on where prompts of different lengths stop.

use engine::generate::generate;
use engine::model::Model;
use engine::train::Trainer;

/// Letters in an order of their own, each with one behind it.
const TEXT: &[u8] = b"qwertyuiopasdfghjklzxcvbnmqwertyuiop";

fn tokens(text: &[u8]) -> Vec<u8> {
    text.iter().map(|letter| letter - b'a').collect()
}

fn main() -> ferroattn::Result<()> {
    let device = engine::device();
    println!("on {}", device.name());
    let mut trainer = Trainer::new(Model::new(&device, 1)?)?;
    let text = tokens(TEXT);
    let texts = [&text[..], &text[9..30], &text[20..]];
    for step in 0..=300 {
        let loss = trainer.step(&texts, 1.0)?;
        if step % 50 == 0 {
            println!("step {step:3}: {loss:.3} nats a token");
        }
    }
    let prompts = [&text[..3], &text[..7], &text[..1]];
    for (prompt, text) in prompts.iter().zip(generate(&trainer.model, &prompts, 12)?) {
        let letters =
            |tokens: &[u8]| -> String { tokens.iter().map(|t| (t + b'a') as char).collect() };
        println!("{} -> {}", letters(prompt), letters(&text));
    }
    Ok(())
}
