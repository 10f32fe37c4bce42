//! How a dense layer's gradient reaches the workers: through parameter servers, or as sufficient
//! factors from each worker to each other. The rule is Poseidon's (Zhang et al., arXiv 1706.03292,
//! section 3.2), with what replicas and compression add.

use super::servers::Compression;

/// The ways that a layer's gradient may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exchange {
    /// Gradients go to the servers, values come back.
    ParameterServer,
    /// The gradient of a dense layer is Σ uᵢvᵢᵀ over the samples of a batch: each worker sends its
    /// u and v to all others, which multiply them out (Xie et al., arXiv 1511.08486).
    SufficientFactors,
}

/// A dense layer: `inputs` × `outputs` weights (M × N), trained with `samples` of a batch (K) on
/// each worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DenseLayer {
    pub inputs: u64,
    pub outputs: u64,
    pub samples: u64,
}

/// Who takes part. Each node runs a worker (P1 of them) and the servers (P2) are among them, as in
/// the paper's Table 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Participants {
    pub workers: u64,
    pub servers: u64,
    /// On how many servers each block is kept (R); 1 is no copy.
    pub replicas: u64,
}

/// Bytes on the wire for each byte of f32. `Compression::ratio` of a setting.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ratios {
    /// Of gradients that workers push. Values that they pull, and sums on their way to replicas,
    /// are not compressed.
    pub gradients: f64,
    /// Of sufficient factors.
    pub factors: f64,
}

impl Ratios {
    pub const NONE: Self = Self {
        gradients: 1.0,
        factors: 1.0,
    };
}

/// Bytes that a node which is both worker and server sends and receives in a clock, on average.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Costs {
    pub parameter_server: f64,
    pub sufficient_factors: f64,
}

impl Costs {
    /// What either way costs for the weights of `layer`:
    ///
    /// ```text
    /// parameter server      MN(P1+P2-2)/P2 · ratio of gradients + MN(P1+P2-2)/P2 + 2(R-1)MN/P2      numbers of 4 bytes
    /// sufficient factors    2K(P1-1)(M+N) · ratio of factors
    /// ```
    pub fn of(layer: DenseLayer, among: Participants, ratios: Ratios) -> Self {
        const NUMBER_BYTES: f64 = 4.0;
        let (inputs, outputs) = (layer.inputs as f64, layer.outputs as f64);
        let workers = among.workers.max(1) as f64;
        let servers = among.servers.max(1) as f64;
        let copies = among.replicas.clamp(1, among.servers.max(1)) as f64 - 1.0;
        let weights = inputs * outputs / servers;
        let one_way = weights * (workers + servers - 2.0);
        let factors = layer.samples as f64 * (workers - 1.0) * (inputs + outputs);
        Self {
            parameter_server: NUMBER_BYTES
                * (one_way * (ratios.gradients + 1.0) + 2.0 * copies * weights),
            sufficient_factors: NUMBER_BYTES * 2.0 * factors * ratios.factors,
        }
    }

    /// The way that costs less; sufficient factors if both cost the same.
    pub fn cheaper(self) -> Exchange {
        if self.sufficient_factors <= self.parameter_server {
            Exchange::SufficientFactors
        } else {
            Exchange::ParameterServer
        }
    }
}

impl Compression {
    /// Bytes on the wire for each byte of f32, of large arrays.
    pub fn ratio(self) -> f64 {
        match self {
            Self::None => 1.0,
            Self::F16 | Self::Bf16 => 0.5,
            // A scale of 4 bytes for 1,024 numbers.
            Self::Int8 => (1.0 + 4.0 / 1024.0) / 4.0,
            // A scale of 4 bytes for 128 numbers.
            Self::Int4 => (0.5 + 4.0 / 128.0) / 4.0,
            Self::Int2 => (0.25 + 4.0 / 128.0) / 4.0,
            // A place of 12 bits and a value for each number that is sent.
            Self::TopK { fraction, values } => {
                f64::from(fraction) * (12.0 / 32.0 + values.compression().ratio())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn alone(nodes: u64) -> Participants {
        Participants {
            workers: nodes,
            servers: nodes,
            replicas: 1,
        }
    }

    #[test]
    fn the_example_of_the_paper_comes_out() {
        // Section 3.2: VGG19's 4096 × 4096 layer, batches of 32, P1 = P2 = 8: 58.7 M numbers for a
        // node that is worker and server, 3.7 M by sufficient factors.
        let layer = DenseLayer {
            inputs: 4096,
            outputs: 4096,
            samples: 32,
        };
        let costs = Costs::of(layer, alone(8), Ratios::NONE);
        assert_eq!(
            costs.parameter_server / 4.0,
            2.0 * 4096.0 * 4096.0 * 14.0 / 8.0
        );
        assert_eq!(costs.sufficient_factors / 4.0, 2.0 * 32.0 * 7.0 * 8192.0);
        assert_eq!(costs.cheaper(), Exchange::SufficientFactors);
    }

    #[test]
    fn small_layers_and_large_batches_go_through_servers() {
        let layer = DenseLayer {
            inputs: 64,
            outputs: 10,
            samples: 64,
        };
        assert_eq!(
            Costs::of(layer, alone(4), Ratios::NONE).cheaper(),
            Exchange::ParameterServer
        );
        let layer = DenseLayer {
            inputs: 4096,
            outputs: 4096,
            samples: 4096,
        };
        assert_eq!(
            Costs::of(layer, alone(4), Ratios::NONE).cheaper(),
            Exchange::ParameterServer
        );
    }

    #[test]
    fn many_nodes_favour_servers_since_factors_grow_with_each() {
        let layer = DenseLayer {
            inputs: 4096,
            outputs: 4096,
            samples: 32,
        };
        let choices: Vec<Exchange> = [2, 8, 32, 512]
            .into_iter()
            .map(|nodes| Costs::of(layer, alone(nodes), Ratios::NONE).cheaper())
            .collect();
        assert_eq!(choices[0], Exchange::SufficientFactors);
        assert_eq!(choices[3], Exchange::ParameterServer);
    }

    #[test]
    fn a_lone_node_sends_nothing() {
        let layer = DenseLayer {
            inputs: 100,
            outputs: 100,
            samples: 8,
        };
        let costs = Costs::of(
            layer,
            Participants {
                workers: 1,
                servers: 1,
                replicas: 2,
            },
            Ratios::NONE,
        );
        assert_eq!(
            (costs.parameter_server, costs.sufficient_factors),
            (0.0, 0.0)
        );
    }

    #[test]
    fn compression_of_either_side_can_turn_the_choice() {
        // 2·256·1·1024 = 2·512·512·2/2: a tie, which goes to factors.
        let layer = DenseLayer {
            inputs: 512,
            outputs: 512,
            samples: 256,
        };
        let among = alone(2);
        let tie = Costs::of(layer, among, Ratios::NONE);
        assert_eq!(tie.parameter_server, tie.sufficient_factors);
        assert_eq!(tie.cheaper(), Exchange::SufficientFactors);
        let pushed = Ratios {
            gradients: Compression::Int8.ratio(),
            factors: 1.0,
        };
        assert_eq!(
            Costs::of(layer, among, pushed).cheaper(),
            Exchange::ParameterServer
        );
    }

    proptest! {
        #[test]
        fn without_replicas_and_compression_it_is_the_rule_of_the_paper(
            inputs in 1u64..10_000, outputs in 1u64..10_000, samples in 1u64..512, workers in 1u64..64, servers in 1u64..64
        ) {
            let among = Participants { workers, servers, replicas: 1 };
            let costs = Costs::of(DenseLayer { inputs, outputs, samples }, among, Ratios::NONE);
            // 2K(P1-1)(M+N) ≤ 2MN(P1+P2-2)/P2, in whole numbers.
            let factors = u128::from(2 * samples * (workers - 1) * (inputs + outputs) * servers);
            let through = u128::from(2 * inputs * outputs * (workers + servers - 2));
            if factors != through {
                let wanted = if factors < through { Exchange::SufficientFactors } else { Exchange::ParameterServer };
                prop_assert_eq!(costs.cheaper(), wanted);
            }
        }

        #[test]
        fn replicas_cost_servers_only(replicas in 2u64..16, nodes in 2u64..64) {
            let layer = DenseLayer { inputs: 300, outputs: 200, samples: 32 };
            let plain = Costs::of(layer, alone(nodes), Ratios::NONE);
            let copied = Costs::of(layer, Participants { replicas, ..alone(nodes) }, Ratios::NONE);
            let copies = (replicas.min(nodes) - 1) as f64;
            let added = 4.0 * 2.0 * copies * 300.0 * 200.0 / nodes as f64;
            prop_assert!((copied.parameter_server - plain.parameter_server - added).abs() <= 1e-6 * added);
            prop_assert_eq!(copied.sufficient_factors, plain.sufficient_factors);
        }
    }
}
