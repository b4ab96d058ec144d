"""What is deployed fits together: names, ports, paths, variables."""

import json
import re
from pathlib import Path

import pytest
import yaml

from pyflame_rt.serving.config import _MODEL_VARIABLES, _VARIABLES
from pyflame_rt.serving.metrics import MetricsRegistry

DEPLOY = Path(__file__).resolve().parents[3] / "deploy"
DOCKERFILE = (DEPLOY / "docker" / "Dockerfile").read_text("utf-8")


@pytest.fixture(scope="module")
def manifests():
    folder = DEPLOY / "kubernetes"
    names = yaml.safe_load((folder / "kustomization.yaml").read_text("utf-8"))["resources"]
    assert {*names, "kustomization.yaml"} == {p.name for p in folder.iterdir()}
    return {d["kind"]: d for name in names for d in yaml.safe_load_all((folder / name).read_text("utf-8"))}


def test_manifests_fit_together(manifests):
    pod = manifests["Deployment"]["spec"]["template"]
    (container,) = pod["spec"]["containers"]
    ports = {p["name"]: p["containerPort"] for p in container["ports"]}
    values = manifests["ConfigMap"]["data"]
    assert ports["http"] == int(values["HTTP_PORT"]) == container["livenessProbe"]["httpGet"]["port"]
    assert ports["metrics"] == int(values["METRICS_PORT"]) == int(pod["metadata"]["annotations"]["prometheus.io/port"])
    assert {p["targetPort"] for p in manifests["Service"]["spec"]["ports"]} == set(ports)
    labels = pod["metadata"]["labels"]
    assert manifests["Service"]["spec"]["selector"].items() <= labels.items()
    assert manifests["Deployment"]["spec"]["selector"]["matchLabels"].items() <= labels.items()
    assert manifests["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"].items() <= labels.items()
    assert container["envFrom"][0]["configMapRef"]["name"] == manifests["ConfigMap"]["metadata"]["name"]
    target = manifests["HorizontalPodAutoscaler"]["spec"]["scaleTargetRef"]
    assert (target["kind"], target["name"]) == ("Deployment", manifests["Deployment"]["metadata"]["name"])
    mounts = {m["mountPath"]: m["name"] for m in container["volumeMounts"]}
    assert values["MODEL_DIR"] in mounts
    assert set(mounts.values()) == {v["name"] for v in pod["spec"]["volumes"]}
    seconds = (int(values["HTTP_DRAIN_MS"]) + 30_000) / 1e3
    assert pod["spec"]["terminationGracePeriodSeconds"] > seconds


def test_variables_are_ones_the_server_reads(manifests):
    known = {*_VARIABLES, *_MODEL_VARIABLES}
    assert set(manifests["ConfigMap"]["data"]) <= known
    said = set(re.findall(r"^(?:ENV)?\s+([A-Z_]+)=", DOCKERFILE, re.MULTILINE))
    assert {"HTTP_PORT", "ENABLE_BATCHING", "MAX_BATCH_SIZE", "MODEL_DIR"} <= said
    assert said <= known | {"PATH", "PYTHONUNBUFFERED", "PYFLAME_CACHE_DIR"}
    compose = yaml.safe_load((DEPLOY / "docker" / "compose.yaml").read_text("utf-8"))
    assert set(compose["services"]["server"]["environment"]) <= known


def test_the_image_is_small_and_not_root():
    assert len(re.findall(r"^FROM ", DOCKERFILE, re.MULTILINE)) == 2
    assert re.search(r"^USER (?!0|root)", DOCKERFILE, re.MULTILINE)
    assert re.search(r"^EXPOSE 8080 9091$", DOCKERFILE, re.MULTILINE)
    root = DEPLOY.parent
    for line in re.findall(r"^COPY (?!--from)(.*) \S+$", DOCKERFILE, re.MULTILINE):
        for name in line.split():
            assert (root / name).exists(), name


def test_the_dashboard_asks_for_metrics_there_are():
    board = json.loads((DEPLOY / "grafana" / "pyflame-rt.json").read_text("utf-8"))
    text = MetricsRegistry().export_prometheus()
    known = set(re.findall(r"^# TYPE (\w+) \w+$", text, re.MULTILINE))
    asked = {
        re.sub(r"_(bucket|sum|count)$", "", name)
        for panel in board["panels"]
        for target in panel["targets"]
        for name in re.findall(r"\b(pyflame_\w+)", target["expr"])
    }
    assert asked
    assert asked <= known
