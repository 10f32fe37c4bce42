"""Kernels on numpy arrays: on a machine without a node, or on the node that NODECTL_NODE__DATA_DIR names. Needs the variable
NODECTL."""

import os
import shutil
import subprocess
import tempfile
import unittest

import nodectl

try:
    import numpy
except ImportError:
    numpy = None

SAXPY = """
struct Factors { a: f32, b: f32 }
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read> y: array<f32>;
@group(0) @binding(2) var<storage, read_write> z: array<f32>;
@group(0) @binding(3) var<uniform> factors: Factors;
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    if id.x < arrayLength(&z) {
        z[id.x] = factors.a * x[id.x] + factors.b * y[id.x];
    }
}
"""
TILE = """
struct Tile { origin: vec3<u32>, size: vec3<u32>, space: vec3<u32>, step: u32 }
@group(0) @binding(9) var<uniform> tile: Tile;
"""
# Sums of what is above and below 0, and the sign of each.
SPLIT = (
    TILE
    + """
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> sign: array<i32>;
@group(0) @binding(2) var<storage, read_write> sums: array<f32>;
@compute @workgroup_size(1)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    if id.x > 0u {
        return;
    }
    for (var i = 0u; i < tile.size.x; i++) {
        sign[i] = i32(x[i] > 0.0) - i32(x[i] < 0.0);
        sums[select(1u, 0u, x[i] > 0.0)] += x[i];
    }
}
"""
)
# Each cell becomes the mean of its neighbours, in a ring.
SMOOTH = """
override WIDTH: u32;
@group(0) @binding(0) var<storage, read_write> now: array<vec2<f32>>;
@group(0) @binding(1) var<storage, read_write> next: array<vec2<f32>>;
@compute @workgroup_size(32)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    if id.x < WIDTH {
        next[id.x] = 0.5 * (now[(id.x + 1u) % WIDTH] + now[(id.x + WIDTH - 1u) % WIDTH]);
    }
}
"""


def can_run():
    probed = subprocess.run([os.environ["NODECTL"], "gpu-probe"], capture_output=True, text=True)
    return "Software" in probed.stdout + probed.stderr


def setUpModule():
    if numpy is None:
        raise unittest.SkipTest("SKIPPED: no numpy")
    if not can_run():
        raise unittest.SkipTest("SKIPPED: no software Vulkan device here (Debian: mesa-vulkan-drivers)")
    if "NODECTL_NODE__DATA_DIR" not in os.environ:
        directory = tempfile.mkdtemp(prefix="nodectl-")
        unittest.addModuleCleanup(shutil.rmtree, directory, True)
        os.environ["NODECTL_NODE__DATA_DIR"] = os.path.join(directory, "data")


class Kernels(unittest.TestCase):
    def fails(self, *arguments, **keywords):
        with self.assertRaises(nodectl.KernelError) as caught:
            nodectl.kernel(*arguments, **keywords)
        return caught.exception

    def test_arrays_in_and_out(self):
        x, y = numpy.random.rand(1000), numpy.arange(1000)
        z = nodectl.kernel(SAXPY, x, y, uniforms={"a": 2.0, "b": numpy.float32(0.5)})
        self.assertEqual((z.shape, z.dtype), ((1000,), numpy.float32))
        numpy.testing.assert_allclose(z, 2 * x + 0.5 * y, rtol=1e-6)

    def test_a_shader_in_a_file_and_a_type_of_results(self):
        with tempfile.TemporaryDirectory() as directory:
            path = os.path.join(directory, "saxpy.wgsl")
            with open(path, "w") as file:
                file.write(SAXPY)
            outputs = {"z": {"dtype": numpy.float16}}
            z = nodectl.kernel(path, {"y": [1.0] * 3, "x": numpy.eye(3)[0]}, shape=3, uniforms={"factors": {"a": 1, "b": 2}}, outputs=outputs)
            self.assertEqual((z.tolist(), z.dtype), ([3.0, 2.0, 2.0], numpy.float16))

    def test_several_outputs_tiles_and_sums(self):
        x = numpy.random.default_rng(1).normal(size=1000).astype("f4")
        outputs = {"sign": {}, "sums": {"shape": 2, "combine": "sum"}}
        found = nodectl.kernel(SPLIT, x, outputs=outputs, cut="x", tile=300, timeout="1m")
        numpy.testing.assert_array_equal(found["sign"], numpy.sign(x))
        numpy.testing.assert_allclose(found["sums"], [x[x > 0].sum(), x[x < 0].sum()], rtol=1e-5)

    def test_a_shader_that_combines(self):
        fold = """
            @group(0) @binding(0) var<storage, read_write> so_far: array<f32>;
            @group(0) @binding(1) var<storage, read> next: array<f32>;
            @compute @workgroup_size(1)
            fn main(@builtin(global_invocation_id) id: vec3<u32>) { so_far[id.x] = max(so_far[id.x], next[id.x]); }
        """
        x = numpy.arange(100.0)
        outputs = {"sums": {"shape": [2], "combine": {"shader": fold}}, "sign": {}}
        found = nodectl.kernel(SPLIT, x, outputs=outputs, cut=["x"], tile=25)
        self.assertEqual(found["sums"].tolist(), [x[75:].sum(), 0.0])

    def test_iterations(self):
        start = numpy.random.rand(40, 2)
        iterate = {"steps": 5, "swap": [["now", "next"]]}
        found = nodectl.kernel(SMOOTH, start, iterate=iterate, constants={"WIDTH": 40})
        for _ in range(5):
            start = (numpy.roll(start, 1, 0) + numpy.roll(start, -1, 0)) / 2
        numpy.testing.assert_allclose(found, start, rtol=1e-5)

    def test_an_array_that_is_read_and_written(self):
        axpy = """
            @group(0) @binding(0) var<storage, read> x: array<f32>;
            @group(0) @binding(1) var<storage, read_write> y: array<f32>;
            @compute @workgroup_size(64)
            fn main(@builtin(global_invocation_id) id: vec3<u32>) {
                if id.x < arrayLength(&y) { y[id.x] += 2.0 * x[id.x]; }
            }
        """
        x, y = numpy.arange(100.0), numpy.ones(100)
        found = nodectl.kernel(axpy, x, y)
        numpy.testing.assert_allclose(found, 1 + 2 * x)
        self.assertEqual(y.tolist(), [1.0] * 100, "what was given stays as it is")
        numpy.testing.assert_allclose(nodectl.kernel(axpy, x, {"y": y}, outputs=["y"]), 1 + 2 * x)

    def test_a_sweep(self):
        found = nodectl.kernel(SAXPY, [1.0, 2.0], [1.0, 1.0], params={"a": [1, 10, 100]}, uniforms={"a": "{a}", "b": 0})
        self.assertEqual([z.tolist() for z in found], [[1.0, 2.0], [10.0, 20.0], [100.0, 200.0]])

    def test_generated_inputs(self):
        made = {"x": {"range": [0, 5]}, "y": {"fill": 1, "shape": [5]}}
        z = nodectl.kernel(SAXPY, made, shape=5, uniforms={"a": 1, "b": 1})
        self.assertEqual(z.tolist(), [1.0, 2.0, 3.0, 4.0, 5.0])

    def test_an_error_of_the_shader_has_its_place(self):
        error = self.fails(SAXPY.replace("if id.x <", "if idx <"), [1.0], [1.0])
        self.assertEqual((error.line, error.column), (9, 8))
        self.assertIn("kernel.wgsl:9:8", str(error))
        self.assertIn("if idx < arrayLength(&z) {", str(error))
        self.assertNotIn("nodectl-kernel-", str(error))

    def test_errors_of_what_it_is_given(self):
        uniforms = {"a": 1, "b": 1}
        for told, arguments, keywords in [
            ("the shader has no uniform `c`", ([1.0], [1.0]), {"uniforms": {**uniforms, "c": 1}}),
            ("the array `y` has no input", ([1.0],), {"uniforms": uniforms}),
            ('3 arrays for 2 bindings: x, y; an output that is read, too, is given by its name, as in {"z": array}', ([1.0], [1.0], [1.0]), {"outputs": "z"}),
            ("the shader has no array `w`; there are x, y, z", ({"w": [1.0]},), {}),
            ("`x` is f32 in the shader, and the array of complex128 does not fit", ([1j], [1.0]), {}),
            ("did you mean `timeout`?", ([1.0], [1.0]), {"uniforms": uniforms, "timeuot": "1m"}),
            ("there is no input whose shape", (), {}),
            ("the shader does not write into `x`", ([1.0],), {"outputs": "x", "shape": 1, "uniforms": uniforms}),
            ("results cannot be of", ([1.0], [1.0]), {"outputs": {"z": {"dtype": complex}}}),
        ]:
            with self.subTest(told):
                self.assertIn(told, str(self.fails(SAXPY, *arguments, **keywords)))
        for array in ([0.5], [-1], [numpy.nan]):
            self.assertIn("does not fit", str(self.fails(SAXPY.replace("x: array<f32>", "x: array<u32>").replace("* x[id.x]", "* f32(x[id.x])"), array, [1.0])))

    def test_a_task_that_fails_says_why(self):
        # More than a device has: found where it runs.
        shader = SAXPY.replace("@workgroup_size(64)", "@workgroup_size(2048)")
        error = self.fails(shader, [1.0], [1.0], uniforms={"a": 1, "b": 1}, retries=0)
        self.assertIn("2048", str(error))


if __name__ == "__main__":
    unittest.main()
