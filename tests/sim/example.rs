//! `cargo run --release --example sim -- [--seeds N] [--from SEED]`: the simulation of `tests/sim`, as long as you like.
//! `SIM_TRACE=1` prints every event.

mod check;
mod faults;
mod runs;
mod user;
mod world;

fn main() {
    let mut arguments = std::env::args().skip(1);
    let (mut from, mut seeds) = (0, 1000);
    while let Some(argument) = arguments.next() {
        let number = arguments.next().and_then(|text| text.parse().ok());
        match (argument.as_str(), number) {
            ("--seeds", Some(number)) => seeds = number,
            ("--from", Some(number)) => from = number,
            _ => {
                eprintln!("usage: sim [--seeds N] [--from SEED]");
                std::process::exit(2)
            }
        }
    }
    println!("{}", runs::many(from, seeds));
    println!("{seeds} passed, 0 failed");
}
