//! Which dense layers' gradients go as sufficient factors from node to node, and which through the
//! parameter servers: what costs less by Poseidon's rule (`types::exchange`), or what the job file
//! says.

use super::{model, plan::TrainPlan, team::Team};
use nodectl_types::{
    exchange::{Costs, DenseLayer, Exchange, Participants, Ratios},
    servers::{ALIGNMENT, Consistency},
};
use nodectl_wire::api::{ExchangeView, ExchangeWay};
use serde_json::json;

/// A dense layer's weights, and how their gradient travels.
#[derive(Clone, Debug, PartialEq)]
pub struct Choice {
    /// The number of the tensor among those that are trained.
    pub tensor: u32,
    pub name: String,
    /// Outputs and inputs.
    pub shape: [u32; 2],
    pub costs: Costs,
    pub exchange: Exchange,
}

/// What becomes of each dense layer where several workers train. Each is taken to run on a node of
/// its own.
pub fn choices(plan: &TrainPlan, team: &Team) -> Vec<Choice> {
    let Ok(arrays) = model::arrays(&plan.model) else {
        return Vec::new();
    };
    if team.workers < 2 {
        return Vec::new();
    }
    let sharing = &plan.sharing;
    let among = Participants {
        workers: team.workers.into(),
        servers: team
            .servers
            .unwrap_or(team.workers)
            .min(team.workers)
            .into(),
        replicas: sharing.replicas.into(),
    };
    let ratios = Ratios {
        gradients: sharing.compression.ratio(),
        ..Ratios::NONE
    };
    let trained = (0..).zip(arrays.iter().filter(|array| array.is_trained));
    let choice = |(tensor, array): (u32, &model::InitialArray)| {
        let (rows, [outputs, inputs]) = (
            array.rows?,
            <[u32; 2]>::try_from(array.shape.as_slice()).ok()?,
        );
        let samples = u64::from(plan.batch.div_ceil(team.workers)) * u64::from(rows);
        let layer = DenseLayer {
            inputs: inputs.into(),
            outputs: outputs.into(),
            samples,
        };
        let costs = Costs::of(layer, among, ratios);
        // The whole batch may fall to the last worker that is left.
        let most = u64::from(plan.batch) * u64::from(rows) * (layer.inputs + layer.outputs);
        let can_be_factored =
            sharing.consistency == Consistency::Bsp && ALIGNMENT + most <= array.len();
        let exchange = match sharing.use_sfb {
            _ if !can_be_factored => Exchange::ParameterServer,
            Some(true) => Exchange::SufficientFactors,
            Some(false) => Exchange::ParameterServer,
            None => costs.cheaper(),
        };
        Some(Choice {
            tensor,
            name: array.name.clone(),
            shape: [outputs, inputs],
            costs,
            exchange,
        })
    };
    trained.filter_map(choice).collect()
}

/// The tensors that go as factors.
pub fn factored(plan: &TrainPlan, team: &Team) -> Vec<u32> {
    let choices = choices(plan, team).into_iter();
    choices
        .filter(|choice| choice.exchange == Exchange::SufficientFactors)
        .map(|choice| choice.tensor)
        .collect()
}

/// For whoever looks at the job: what a worker's specification says of it.
pub fn init(plan: &TrainPlan, team: &Team) -> String {
    let view = |choice: Choice| ExchangeView {
        layer: choice.name,
        shape: choice.shape,
        exchange: match choice.exchange {
            Exchange::ParameterServer => ExchangeWay::Servers,
            Exchange::SufficientFactors => ExchangeWay::Factors,
        },
        servers_bytes: choice.costs.parameter_server as u64,
        factors_bytes: choice.costs.sufficient_factors as u64,
    };
    let views: Vec<ExchangeView> = choices(plan, team).into_iter().map(view).collect();
    if views.is_empty() {
        "{}".into()
    } else {
        json!({ "exchange": views }).to_string()
    }
}
