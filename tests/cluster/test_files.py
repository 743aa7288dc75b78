"""The files for Kubernetes and Slurm, and the image: valid, and their commands do what they say."""

import contextlib
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
import yaml

import mpwds
from mpwds.feed import keys

ROOT = Path(__file__).parents[2]
KUBERNETES = sorted((ROOT / "docs/cluster/kubernetes").glob("*.yaml"))
SLURM = ROOT / "docs/cluster/slurm"
VERSIONS = ["1.30.0", "1.37.0"]

PIPELINE = """
import mpwds

dataset = mpwds.DataPipeline(range(40)).batched(4)
stages = [mpwds.map(lambda sample: {**sample, "txt": sample["__key__"]})]
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with the files that the commands read; ``mpwds`` is on the path."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    Path("pipeline.py").write_text(PIPELINE)
    return tmp_path


def objects(path):
    return list(yaml.safe_load_all(path.read_text()))


def container(name):
    """The one container of the file's workload."""
    *_, workload = objects(ROOT / f"docs/cluster/kubernetes/{name}.yaml")
    (found,) = workload["spec"]["template"]["spec"]["containers"]
    return workload, found


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("path", KUBERNETES, ids=lambda path: path.name)
def test_manifests_are_as_the_schema_of_kubernetes_says(path, version):
    validate = pytest.importorskip("kubernetes_validate").validate
    for each in objects(path):
        validate(each, version, strict=True)


def test_what_manifests_name_is_there():
    service, deployment = objects(ROOT / "docs/cluster/kubernetes/servers.yaml")
    (scaler,) = objects(ROOT / "docs/cluster/kubernetes/autoscaler.yaml")
    (adapter,) = objects(ROOT / "docs/cluster/kubernetes/adapter.yaml")
    template = deployment["spec"]["template"]
    assert service["spec"]["selector"] == template["metadata"]["labels"]
    assert scaler["spec"]["scaleTargetRef"]["name"] == deployment["metadata"]["name"]
    (rule,) = yaml.safe_load(adapter["data"]["config.yaml"])["rules"]
    assert rule["name"]["as"] == scaler["spec"]["metrics"][0]["pods"]["metric"]["name"]
    (one,) = template["spec"]["containers"]
    assert {mount["name"] for mount in one["volumeMounts"]} == {
        v["name"] for v in template["spec"]["volumes"]
    }
    page = (ROOT / "docs/guides/servers/clusters.md").read_text()
    for name in ("mpwds-code", "mpwds-server-keys", "mpwds-metrics"):
        assert f" {name} " in page, f"the page says how to make {name}"


def test_the_servers_command_serves_is_ready_and_shows_what_the_autoscaler_reads(folder):
    _, server = container("servers")
    keys.generate(folder / "keys")
    Path("token").write_text("secret\n")
    feed, metrics = free_port(), free_port()
    places = {
        "/code/": f"{folder}/",
        "/keys": f"{folder}/keys",
        "/metrics/": f"{folder}/",
        "0.0.0.0:7880": f"127.0.0.1:{feed}",
        "0.0.0.0:9400": f"127.0.0.1:{metrics}",
    }
    probe = server["readinessProbe"]["httpGet"]
    page = f"http://127.0.0.1:{metrics}"
    with subprocess.Popen(replaced(server["command"], places)) as process:
        wait_until(lambda: is_answered(page + probe["path"]), process)
        with mpwds.RemoteLoader(f"tcp://127.0.0.1:{feed}", keys="keys", output="numpy") as loader:
            assert sorted(number for batch in loader for number in batch.tolist()) == list(range(40))
            request = urllib.request.Request(f"{page}/metrics", headers={"Authorization": "Bearer secret"})
            shown = urllib.request.urlopen(request).read().decode()
        (adapter,) = objects(ROOT / "docs/cluster/kubernetes/adapter.yaml")
        for name in set(re.findall(r"mpwds_\w+_total", adapter["data"]["config.yaml"])):
            assert f'{name}{{worker="0"}}' in shown
        process.terminate()
    assert process.returncode == 0


def is_answered(url):
    with contextlib.suppress(urllib.error.URLError):
        return urllib.request.urlopen(url).status == 200


def test_the_jobs_command_writes_each_shard_once(folder, write_shard):
    job, part = container("job")
    shards = 3
    for shard in range(shards):
        write_shard(f"in-00000{shard}.tar", *({"cls": n} for n in range(2)))
    places = {"/code/": f"{folder}/", "s3://bucket/": f"{folder}/", "..000999": f"..{shards - 1:06d}"}
    for index in range(shards):
        words = replaced(part["command"], {**places, "$(JOB_COMPLETION_INDEX)": str(index)})
        assert words[-1] == f"{index}/{job['spec']['completions']}"
        done = subprocess.run(words, capture_output=True, text=True, check=True)
        assert done.stdout.endswith(": 1 shard written\n")
    assert len(list(Path().glob("out-*.tar"))) == shards


class TestSlurm:
    """Stand-ins for ``srun`` and ``scontrol``: the scripts ran on no cluster of Slurm."""

    @pytest.fixture(autouse=True)
    def _stand_ins(self, folder, monkeypatch):
        # srun's options come before the command, which gets as many processors as the script asked for.
        srun = 'while [[ $1 == --* ]]; do shift; done; export SLURM_CPUS_PER_TASK=2; exec "$@"'
        for name, body in {"srun": srun, "scontrol": "echo localhost"}.items():
            path = folder / "bin" / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(f"#!/bin/bash\n{body}\n")
            path.chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder / 'bin'}:{os.environ['PATH']}")

    def test_trainers_read_from_the_servers_of_the_job(self, folder, monkeypatch):
        port = free_port()
        monkeypatch.setenv("SLURM_JOB_NODELIST_HET_GROUP_1", "cpu[1-4]")
        Path("train.sh").write_text((SLURM / "train.sh").read_text().replace("7880", str(port)))
        Path("train.py").write_text(
            "import sys, mpwds\n"
            "urls = open(sys.argv[1].removeprefix('file:')).read().split()\n"
            "with mpwds.RemoteLoader(urls, keys='keys', output='numpy') as loader:\n"
            "    print(sorted(number for batch in loader for number in batch.tolist()) == list(range(40)))\n"
        )
        done = subprocess.run(["bash", "train.sh"], capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        assert "True" in done.stdout.splitlines()

    def test_an_array_writes_each_shard_once(self, folder, monkeypatch, write_shard):
        for shard in range(2):
            write_shard(f"in-00000{shard}.tar", {"cls": shard})
        Path("array.sh").write_text((SLURM / "array.sh").read_text().replace("..000999", "..000001"))
        monkeypatch.setenv("SLURM_CPUS_PER_TASK", "1")
        for task in "10":
            monkeypatch.setenv("SLURM_ARRAY_TASK_ID", task)
            done = subprocess.run(["bash", "array.sh"], capture_output=True, text=True, check=True)
            assert done.stdout.endswith(": 1 shard written\n")

    @pytest.mark.parametrize("name", ["train.sh", "array.sh"])
    def test_what_sbatch_reads_is_at_the_top(self, name):
        lines = (SLURM / name).read_text().splitlines()
        commands = [number for number, line in enumerate(lines) if line and not line.startswith("#")]
        options = [number for number, line in enumerate(lines) if line.startswith("#SBATCH")]
        assert options
        assert max(options) < commands[0]


class TestImage:
    """The steps of ``tools/Dockerfile`` that need no Docker."""

    def steps(self):
        text = re.sub(r"^#.*\n", "", (ROOT / "tools/Dockerfile").read_text(), flags=re.MULTILINE)
        return [line.split(maxsplit=1) for line in text.splitlines() if line]

    def test_it_runs_without_root(self):
        *_, last = (arguments for step, arguments in self.steps() if step == "USER")
        assert last not in ("root", "0")

    def test_what_it_installs_has_the_commands(self, tmp_path):
        def inside(words):
            return words.replace("/src", f"{tmp_path}/src").replace("/venv", f"{tmp_path}/venv")

        first_stage = self.steps()[: [step for step, _ in self.steps()].index("FROM", 1)]
        for step, arguments in first_stage:
            if step == "COPY":
                *sources, target = inside(arguments).split()
                Path(target).mkdir(parents=True, exist_ok=True)
                for source in sources:
                    copy = shutil.copytree if (ROOT / source).is_dir() else shutil.copy
                    copy(
                        ROOT / source, target, **({"dirs_exist_ok": True} if copy is shutil.copytree else {})
                    )
            elif step == "RUN":
                # torch's own index may be out of reach; the tests' torch does as well.
                line = inside(arguments.replace("python -m venv", f"{sys.executable} -m venv"))
                index = r"--index-url \S+ torch"
                line = re.sub(index, f"torch=={mpwds_torch()}", line)
                subprocess.run(line, shell=True, check=True, stdout=subprocess.DEVNULL)
        command = f"{tmp_path}/venv/bin/mpwds"
        done = subprocess.run([command, "serve", "--help"], capture_output=True, text=True, cwd="/")
        assert "--metrics-token" in done.stdout


def mpwds_torch():
    from importlib.metadata import version

    return version("torch").partition("+")[0]


def replaced(words, places):
    for old, new in places.items():
        words = [word.replace(old, new) for word in words]
    return words


def wait_until(condition, process):
    deadline = time.monotonic() + 300
    while not condition():
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
