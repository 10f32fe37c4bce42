// Reduces the middle of [outer, axis, inner], cut into parts: [outer, parts, inner]. In rounds: the last has one part, and
// reads the values and places that the round before wrote.
// Kinds: 0 sum, 1 min, 2 max, 3 argmax. `lanes` invocations of a workgroup share one output; each takes every lanes-th
// element, then they combine as a tree: the same order on every device.
#include "include/nan.wgsl"

struct Push {
    x_at: u32, places_at: u32, values_out_at: u32, places_out_at: u32,
    outer: u32, axis: u32, inner: u32, parts: u32, part_len: u32,
    kind: u32,
    // Bits: places are given; values are written; places are written.
    flags: u32,
    lanes: u32,
    divisor: f32,
    start: f32,
}

@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read> places: array<u32>;
@group(0) @binding(2) var<storage, read_write> values_out: array<f32>;
@group(0) @binding(3) var<storage, read_write> places_out: array<u32>;
var<immediate> p: Push;

const GROUP = 256u;
const NOWHERE = 0xffffffffu;

struct State { value: f32, place: u32 }

var<workgroup> values: array<f32, 256>;
var<workgroup> at: array<u32, 256>;

fn combine(a: State, b: State) -> State {
    if p.kind == 0u {
        return State(a.value + b.value, 0u);
    }
    if is_nan(a.value) || is_nan(b.value) {
        if is_nan(a.value) && (!is_nan(b.value) || a.place <= b.place) {
            return a;
        }
        return b;
    }
    // Of equal ones, the first.
    if a.value == b.value {
        return State(a.value, min(a.place, b.place));
    }
    if (a.value < b.value) == (p.kind == 1u) {
        return a;
    }
    return b;
}

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let per_group = GROUP / p.lanes;
    // Neighbouring invocations read neighbouring elements: along the axis where all lanes share one output, else across.
    let lane = select(thread / per_group, thread, p.lanes == GROUP);
    let slot_in_group = select(thread % per_group, 0u, p.lanes == GROUP);
    let slots = p.outer * p.parts * p.inner;
    for (var first = group.x * per_group; first < slots; first += groups.x * per_group) {
        let slot = first + slot_in_group;
        var state = State(p.start, NOWHERE);
        let inner = slot % p.inner;
        let part = slot / p.inner % p.parts;
        let outer = slot / p.inner / p.parts;
        let end = min((part + 1u) * p.part_len, p.axis);
        if slot < slots {
            for (var j = part * p.part_len + lane; j < end; j += p.lanes) {
                let index = (outer * p.axis + j) * p.inner + inner;
                var place = j;
                if (p.flags & 1u) != 0u {
                    place = places[p.places_at + index];
                }
                state = combine(state, State(x[p.x_at + index], place));
            }
        }
        values[thread] = state.value;
        at[thread] = state.place;
        for (var half = p.lanes / 2u; half > 0u; half /= 2u) {
            workgroupBarrier();
            if lane < half {
                let other = thread + half * per_group;
                state = combine(state, State(values[other], at[other]));
                values[thread] = state.value;
                at[thread] = state.place;
            }
        }
        if lane == 0u && slot < slots {
            if (p.flags & 2u) != 0u {
                values_out[p.values_out_at + slot] = state.value / p.divisor;
            }
            if (p.flags & 4u) != 0u {
                places_out[p.places_out_at + slot] = state.place;
            }
        }
        workgroupBarrier();
    }
}
