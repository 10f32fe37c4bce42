//! What an exchange of gradients costs by parameter servers, by sufficient factors, and by the
//! cheaper of both for each layer (`types::exchange`), for the layers of VGG19-22K and Inception-V3
//! on 2 to 32 nodes at 10 GbE. The cluster is simulated (`exchange/links.rs` says how); the rule
//! and the placement of blocks are the product's. No node runs. `-- --replicas R` (2), `-- --plot`
//! writes `results/exchange.svg`.

#[path = "exchange/links.rs"]
mod links;
#[path = "exchange/nets.rs"]
mod nets;
#[path = "exchange/plot.rs"]
mod plot;
mod support;

use nets::ExchangeNet;
use nodectl::types::exchange::{Costs, DenseLayer, Exchange, Participants, Ratios};
use support::{number, report};

const NODES: [usize; 9] = [2, 4, 6, 8, 12, 16, 20, 24, 32];
/// The bar's.
const AT: usize = 8;

/// One way of exchanging, on each number of nodes.
pub struct Scheme {
    pub name: &'static str,
    /// GB that a node sends and receives in a step.
    pub gigabytes: Vec<f64>,
    /// Over one node.
    pub speedups: Vec<f64>,
}

fn main() {
    let replicas = number("--replicas", 2);
    let results = [nets::vgg19_22k(), nets::inception_v3()].map(|net| {
        let schemes = schemes(&net, replicas);
        print(&net, &schemes, replicas);
        (net, schemes)
    });
    let (_, vgg) = &results[0];
    let at = NODES
        .iter()
        .position(|nodes| *nodes == AT)
        .expect("it is one of them");
    let bytes: Vec<f64> = vgg.iter().map(|scheme| scheme.gigabytes[at]).collect();
    let chosen = bytes[bytes.len() - 1];
    report::title(&format!(
        "VGG19-22K on {AT} simulated nodes, bytes of the chosen exchange"
    ));
    for (scheme, gigabytes) in vgg.iter().zip(&bytes).take(2) {
        report::bar(
            &format!("beside {}", scheme.name),
            chosen,
            *gigabytes,
            "GB",
            "",
        );
    }
    if std::env::args().any(|argument| argument == "--plot") {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/results/exchange.svg");
        std::fs::write(
            path,
            plot::picture(&results, &NODES).expect("it can be drawn"),
        )
        .expect("it can be written");
    }
}

/// Servers alone, factors alone, factors for all dense layers, and the cheaper for each layer.
fn schemes(net: &ExchangeNet, replicas: usize) -> Vec<Scheme> {
    type Choice = fn(&nets::WeightLayer, Exchange) -> Exchange;
    let choices: [(&'static str, Choice); 4] = [
        ("servers alone", |_, _| Exchange::ParameterServer),
        ("factors alone", |_, _| Exchange::SufficientFactors),
        ("factors for dense layers", |layer, _| {
            if layer.is_dense() {
                Exchange::SufficientFactors
            } else {
                Exchange::ParameterServer
            }
        }),
        ("the cheaper for each layer", |_, cheaper| cheaper),
    ];
    let of = |(name, choice): (&'static str, Choice)| {
        let mut scheme = Scheme {
            name,
            gigabytes: Vec::new(),
            speedups: Vec::new(),
        };
        for nodes in NODES {
            let costs: Vec<Costs> = net
                .layers
                .iter()
                .map(|layer| costs(net, layer, nodes, replicas))
                .collect();
            let exchanges: Vec<Exchange> = net
                .layers
                .iter()
                .zip(&costs)
                .map(|(layer, costs)| choice(layer, costs.cheaper()))
                .collect();
            let outcome = links::run(net, nodes, replicas as u32, &exchanges);
            let expected: f64 = costs
                .iter()
                .zip(&exchanges)
                .map(|(costs, exchange)| of_both(costs, *exchange))
                .sum();
            let difference = (outcome.bytes_per_node - expected).abs();
            assert!(
                difference <= 1e-9 * expected,
                "{} and {expected} bytes",
                outcome.bytes_per_node
            );
            scheme.gigabytes.push(outcome.bytes_per_node / 1e9);
            scheme
                .speedups
                .push(nodes as f64 * links::compute_seconds(net) / outcome.seconds);
        }
        scheme
    };
    choices.into_iter().map(of).collect()
}

/// A convolution's gradient is a sum over samples and places, so its factors have that many rows.
fn costs(net: &ExchangeNet, layer: &nets::WeightLayer, nodes: usize, replicas: usize) -> Costs {
    let (inputs, outputs, samples) = (layer.inputs, layer.outputs, net.samples * layer.places);
    let nodes = nodes as u64;
    let among = Participants {
        workers: nodes,
        servers: nodes,
        replicas: replicas as u64,
    };
    Costs::of(
        DenseLayer {
            inputs,
            outputs,
            samples,
        },
        among,
        Ratios::NONE,
    )
}

fn of_both(costs: &Costs, exchange: Exchange) -> f64 {
    match exchange {
        Exchange::ParameterServer => costs.parameter_server,
        Exchange::SufficientFactors => costs.sufficient_factors,
    }
}

fn print(net: &ExchangeNet, schemes: &[Scheme], replicas: usize) {
    let weights: u64 = net.layers.iter().map(nets::WeightLayer::weights).sum();
    println!(
        "{}: {:.0} M weights, batches of {} a node, {replicas} replicas, {:.2} s a step alone (assumed), 10 GbE (simulated)",
        net.name,
        weights as f64 / 1e6,
        net.samples,
        links::compute_seconds(net)
    );
    println!(
        "  {:>5}  {}",
        "nodes",
        schemes
            .iter()
            .map(|scheme| format!("{:>28}", scheme.name))
            .collect::<String>()
    );
    for (index, nodes) in NODES.iter().enumerate() {
        let each = schemes.iter().map(|scheme| {
            format!(
                "{:>14.3} GB {:>8.1} x ",
                scheme.gigabytes[index], scheme.speedups[index]
            )
        });
        let published = net.published.iter().find(|(at, _)| at == nodes);
        let published = published.map_or(String::new(), |(_, times)| {
            format!("  Poseidon published {times} x")
        });
        println!("  {nodes:>5}  {}{published}", each.collect::<String>());
    }
}
