"""Hydra's launcher: Hydra's own tests of launchers, and what they do not ask."""

import subprocess
import sys

import pytest
from hydra.core.plugins import Plugins
from hydra.plugins.launcher import Launcher
from hydra.test_utils.launcher_common_tests import BatchedSweeperTestSuite, IntegrationTestSuite, LauncherTestSuite
import hydra_plugins.hydra_nodectl_launcher as plugin

FEW = ["hydra.launcher.cpus=0.5", "hydra.launcher.max_workers=2"]


def test_the_launcher_is_found():
    assert plugin.NodectlLauncher.__name__ in [one.__name__ for one in Plugins.instance().discover(Launcher)]


@pytest.mark.parametrize("launcher_name, overrides", [("nodectl", FEW)])
class TestLauncher(LauncherTestSuite):
    pass


@pytest.mark.parametrize("launcher_name, overrides", [("nodectl", FEW)])
class TestLauncherOnOtherFiles(LauncherTestSuite):
    """As if nodes did not share the directory of the sweep: files of jobs come back."""

    @pytest.fixture(autouse=True)
    def nodes_see_no_mark(self, monkeypatch):
        monkeypatch.setattr(plugin, "_mark", lambda directory: directory / "not there")


@pytest.mark.parametrize("launcher_name, overrides", [("nodectl", [*FEW, "hydra.sweeper.max_batch_size=2"])])
class TestBatches(BatchedSweeperTestSuite):
    pass


@pytest.mark.parametrize("task_launcher_cfg, extra_flags", [({}, ["-m", "hydra/launcher=nodectl", *FEW])])
class TestIntegration(IntegrationTestSuite):
    pass


APP = """
import hydra, os

@hydra.main(version_base=None, config_path=None)
def main(config):
    with open(os.path.join(hydra.core.hydra_config.HydraConfig.get().runtime.output_dir, "made"), "w") as file:
        file.write(str(config.x))
    if config.x == 2:
        raise ValueError("two is too much")

main()
"""


def multirun(directory, *arguments):
    (directory / "app.py").write_text(APP)
    line = [sys.executable, "app.py", "--multirun", "hydra/launcher=nodectl", *FEW, *arguments]
    return subprocess.run(line, cwd=directory, capture_output=True, text=True, timeout=120)


def test_files_of_jobs_are_in_their_directories_and_a_failure_is_told(tmp_path):
    ran = multirun(tmp_path, "+x=1,2", "hydra.sweep.dir=made")
    assert ran.returncode == 1 and "two is too much" in ran.stderr, ran.stdout + ran.stderr
    assert [(tmp_path / "made" / name / "made").read_text() for name in "01"] == ["1", "2"]
    assert not list((tmp_path / "made").glob(".nodectl-*"))
