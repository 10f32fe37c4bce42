//! Factors of gradients, and the libraries that tensors come from: JAX, PyTorch.

use super::*;

/// A dense layer whose gradients go as factors beside one whose gradients go whole: both come to
/// the same.
const FACTORS_SCRIPT: &str = r#"
import json, sys
import numpy as np
from nodectl.params import ParameterServer

random = np.random.default_rng(7)
x = random.normal(size=(8, 40)).astype("f4")
target = (x @ random.normal(size=(40, 60))).astype("f4")
with ParameterServer.connect(optimizer="momentum", rate=0.05) as server:
    mine = slice(server.worker, None, server.workers)
    start = {"whole": np.zeros((60, 40)), "factored": np.zeros((60, 40))}
    values = server.register(start, factored=["factored"])
    for wrong in (lambda: server.push("factored"), lambda: server.push_factors("factored", np.ones((40, 60)), np.ones((40, 40)))):
        try:
            wrong()
        except ValueError as error:
            print(error)
    for _ in range(20):
        back = {name: 2 * (x[mine] @ w.T - target[mine]) / len(x[mine]) for name, w in values.items()}
        server.push({"whole": back["whole"].T @ x[mine]})
        server.push_factors("factored", back["factored"], x[mine])
        server.clock(len(x[mine]))
        values = server.pull()
    difference = np.abs(values["whole"] - values["factored"]).max() / np.abs(values["whole"]).max()
    json.dump({"difference": float(difference), "w": values["factored"].ravel().tolist()}, open("out.json", "w"))
"#;

#[test]
fn gradients_as_factors_come_to_what_whole_ones_come_to() {
    let Some(path) = python_path() else { return };
    let cluster = cluster(2, &path);
    let job = job(&cluster, "factors", 2, 2, "{}");
    fs::write(job.with_file_name("train.py"), FACTORS_SCRIPT).expect("writable");
    let outcomes = outcome(start(&cluster, 0, &job), &job, 2);
    assert_eq!(outcomes[0]["w"], outcomes[1]["w"]);
    assert!(
        outcomes[0]["difference"]
            .as_f64()
            .is_some_and(|difference| difference < 1e-5),
        "{}",
        outcomes[0]["difference"]
    );
    let told = cluster.ok(0, &["logs", "last", "0"]);
    assert!(
        told.contains("use `push_factors`")
            && told.contains("factors of 40 samples take more room"),
        "{told}"
    );
}

/// Fits y = x·w + b with JAX.
const JAX_SCRIPT: &str = r#"
import json, sys
import jax, jax.numpy as jnp
import numpy as np
from nodectl.jax import SharedTree
from nodectl.params import ParameterServer

options = json.loads(sys.argv[1])
steps = options.pop("steps")
random = np.random.default_rng(7)
x = random.normal(size=(96, 5)).astype("f4")
target = (x @ np.arange(1, 6) + 0.5).astype("f4")
loss = lambda tree, x, y: jnp.mean((x @ tree["dense"][0] + tree["dense"][1] - y) ** 2)
with ParameterServer.connect(**options) as server:
    mine = slice(server.worker, None, server.workers)
    shared = SharedTree(server, {"dense": [jnp.zeros(5), jnp.zeros(1)]})
    while server.step < steps:
        shared.step(jax.grad(loss)(shared.tree, x[mine], target[mine]), len(x[mine]))
    weights, bias = shared.tree["dense"]
    json.dump({"w": np.asarray(weights).tolist(), "b": np.asarray(bias).tolist()}, open("out.json", "w"))
"#;

#[test]
fn workers_share_a_tree_of_jax() {
    let Some(env) = python_env_with("jax") else {
        return;
    };
    let cluster = cluster_with(1, &env);
    let job = job(&cluster, "jax", 2, 1, r#"{"steps": 150, "rate": 0.05}"#);
    fs::write(job.with_file_name("train.py"), JAX_SCRIPT).expect("writable");
    let outcomes = outcome(start(&cluster, 0, &job), &job, 2);
    assert_eq!(outcomes[0], outcomes[1]);
    assert_fits(&outcomes[0], 0.02);
}

/// What `DistributedOptimizer` needs of PyTorch: 2.1 has it, Debian 12's 1.13 does not.
const HAS_HOOKS: &str = "hasattr(torch.Tensor, 'register_post_accumulate_grad_hook')";

/// Steps by oneself with an optimizer of PyTorch's, and outer steps on the servers.
const LOCAL_SCRIPT: &str = r#"
import json, torch
from nodectl.params import ParameterServer
from nodectl.torch import LocalOptimizer

torch.manual_seed(3)
x = torch.randn(128, 5)
target = x @ torch.arange(1.0, 6.0)[:, None] + 0.5
model = torch.nn.Linear(5, 1)
with ParameterServer.connect(optimizer="nesterov", rate=0.7, momentum=0.6, consistency="local", local_steps=10) as server:
    optimizer = LocalOptimizer(model, torch.optim.SGD(model.parameters(), lr=0.05), server, steps=10)
    mine = slice(server.worker, None, server.workers)
    while server.step < 30:
        torch.nn.functional.mse_loss(model(x[mine]), target[mine]).backward()
        optimizer.step(len(x[mine]))
        optimizer.zero_grad()
    values = {"w": model.weight.detach().flatten().tolist(), "b": model.bias.detach().tolist(), "step": server.step}
    json.dump(values, open("out.json", "w"))
"#;

/// A model whose first layer's gradients are factors, if it is told so.
const SFB_SCRIPT: &str = r#"
import json, sys, torch
from nodectl.params import ParameterServer
from nodectl.torch import DistributedOptimizer

use_sfb = json.loads(sys.argv[1])["use_sfb"]
torch.manual_seed(3)
x = torch.randn(16, 64)
target = torch.tanh(x @ torch.randn(64, 10))
model = torch.nn.Sequential(torch.nn.Linear(64, 96), torch.nn.Tanh(), torch.nn.Linear(96, 10))
with ParameterServer.connect(optimizer="momentum", rate=0.05, use_sfb=use_sfb) as server:
    optimizer = DistributedOptimizer(model, server, batch=16)
    assert list(optimizer._factors) == (["0.weight"] if use_sfb else []), "the small layer's gradient is less than its factors"
    mine = slice(server.worker, None, server.workers)
    while server.step < 30:
        torch.nn.functional.mse_loss(model(x[mine]), target[mine]).backward()
        optimizer.step(len(x[mine]))
        optimizer.zero_grad()
    json.dump({"w": torch.cat([p.detach().flatten() for p in model.parameters()]).tolist()}, open("out.json", "w"))
"#;

#[test]
fn models_of_pytorch_send_factors_of_their_dense_layers() {
    let Some(env) = python_env_where("torch", HAS_HOOKS) else {
        return;
    };
    let cluster = cluster_with(2, &env);
    let weights = [true, false].map(|use_sfb| {
        let job = job(
            &cluster,
            &format!("sfb-{use_sfb}"),
            2,
            2,
            &format!("{{\"use_sfb\": {use_sfb}}}"),
        );
        fs::write(job.with_file_name("train.py"), SFB_SCRIPT).expect("writable");
        let outcomes = outcome(start(&cluster, 0, &job), &job, 2);
        assert_eq!(outcomes[0], outcomes[1]);
        serde_json::from_value::<Vec<f64>>(outcomes[0]["w"].clone()).expect("numbers")
    });
    let differs = |(a, b): (&f64, &f64)| (a - b).abs() > 1e-4;
    assert!(
        !weights[0].iter().zip(&weights[1]).any(differs),
        "{weights:?}"
    );
}

#[test]
fn the_example_with_pytorch_learns_the_digits() {
    let Some(env) = python_env_where("torch", HAS_HOOKS) else {
        return;
    };
    let cluster = cluster_with(2, &env);
    let example =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("packaging/python/examples/train_torch.toml");
    let into = cluster.dir.path().join("out");
    let (code, output) = run_to_end(&cluster, 0, &example, &into);
    assert_eq!(code, Some(0), "{output}");
    let results = read_results(&into);
    for (worker, result) in &results {
        assert!(
            result["value"]["validation_accuracy"].as_f64() >= Some(0.97),
            "{result}"
        );
        assert!(into.join(worker.to_string()).join("model.pt").is_file());
    }
    assert_eq!(results.len(), 2);
}

#[test]
fn models_of_pytorch_take_steps_by_themselves_and_outer_ones_together() {
    let Some(env) = python_env_with("torch") else {
        return;
    };
    let cluster = cluster_with(2, &env);
    let job = job(&cluster, "local", 2, 2, "{}");
    fs::write(job.with_file_name("train.py"), LOCAL_SCRIPT).expect("writable");
    let outcomes = outcome(start(&cluster, 0, &job), &job, 2);
    assert_eq!(outcomes[0], outcomes[1]);
    assert_fits(&outcomes[0], 0.01);
}
