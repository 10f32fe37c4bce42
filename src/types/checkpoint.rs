//! What a file of parameters holds besides the tensors by name: entries of its metadata, and arrays
//! that are no tensors. Two write such files, parameter servers and a worker that trains alone;
//! each goes on from what the other wrote, and any framework reads both.

/// Entry: what the file is a model of, as whoever made it wants it back.
pub const NOTE: &str = "nodectl";
/// Entry of a checkpoint: how many steps its values have behind them; clocks, where workers share a
/// model.
pub const STEP: &str = "step";
/// Entry of a checkpoint of several workers: the number of the view that it was made in.
pub const VIEW: &str = "view";
/// Before the names of arrays that the optimizer remembers.
pub const OPTIMIZER: &str = "optimizer/";

/// What `Optimizer::states` are called, in their order.
const STATES: [&str; 2] = ["first", "second"];

/// The name of the array, the `index`th from 0, that the optimizer remembers for a tensor. It has
/// the tensor's shape.
///
/// # Panics
/// If there are fewer: no optimizer remembers more than two.
pub fn state_name(tensor: &str, index: usize) -> String {
    format!("{OPTIMIZER}{tensor}/{}", STATES[index])
}
