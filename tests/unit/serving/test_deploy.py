"""What is deployed fits together: names, ports, paths, variables."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from pyflame_rt.serving.app import OPEN_PATHS
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


def test_hadolint_finds_nothing():
    hadolint = shutil.which("hadolint")
    if hadolint is None:
        pytest.skip("needs hadolint: make serving-deploy")
    command = [hadolint, "--failure-threshold", "style", str(DEPLOY / "docker" / "Dockerfile")]
    found = subprocess.run(command, capture_output=True, text=True, check=False, timeout=250)
    assert (found.returncode, found.stdout) == (0, "")


def test_what_kustomize_renders_is_valid():
    validating = pytest.importorskip("kubernetes_validate", reason="needs kubernetes-validate: make serving-deploy")
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("needs kubectl")
    command = [kubectl, "kustomize", str(DEPLOY / "kubernetes")]
    text = subprocess.run(command, capture_output=True, text=True, check=True, timeout=250).stdout
    rendered = list(yaml.safe_load_all(text))
    assert len(rendered) == 7
    for resource in rendered:
        assert resource["metadata"].get("namespace", "pyflame-rt") == "pyflame-rt"
        validating.validate(resource, validating.latest_version(), strict=True)
    with pytest.raises(validating.ValidationError):  # it does look
        validating.validate({**rendered[0], "spek": {}}, validating.latest_version(), strict=True)


class Typed:
    """Objects of the SDKs' generated classes from YAML; a field that a class has not is a KeyError."""

    def __init__(self, *modules):
        self._modules = modules

    def make(self, kind, value):
        inner = re.fullmatch(r"(?:list\[(.*)\]|dict[\(\[]str, (.*)[\)\]])", kind, re.IGNORECASE)
        if inner and isinstance(value, list):
            return [self.make(inner[1], item) for item in value]
        if inner:
            return {key: self.make(inner[2], item) for key, item in value.items()}
        found = next((getattr(module, kind) for module in self._modules if hasattr(module, kind)), None)
        if found is None:
            wanted = {"str": str, "int": int, "bool": bool, "object": object, "float": float}[kind]
            assert isinstance(value, wanted), (kind, value)
            return value
        fields = {json_name: name for name, json_name in found.attribute_map.items()}
        made = {fields[key]: self.make(found.openapi_types[fields[key]], item) for key, item in value.items()}
        return found(**made)

    def plain(self, value):
        """The same back."""
        if isinstance(value, list):
            return [self.plain(item) for item in value]
        if isinstance(value, dict):
            return {key: self.plain(item) for key, item in value.items()}
        names = getattr(value, "attribute_map", None)
        if names is None:
            return value
        given = {key: getattr(value, name) for name, key in names.items()}
        return {key: self.plain(item) for key, item in given.items() if item is not None}


def test_the_inference_service_has_the_types_of_kserve(manifests):
    kserve = pytest.importorskip("kserve", reason="needs KServe's SDK: make serving-deploy")
    kubernetes = pytest.importorskip("kubernetes.client")
    given = yaml.safe_load((DEPLOY / "kserve" / "inference-service.yaml").read_text("utf-8"))
    typed = Typed(kserve, kubernetes)
    found = typed.make("V1beta1InferenceService", given)
    assert typed.plain(found) == given
    with pytest.raises(KeyError):
        typed.make("V1beta1InferenceService", {**given, "spek": {}})


def test_the_inference_service_fits_the_image(manifests):
    given = yaml.safe_load((DEPLOY / "kserve" / "inference-service.yaml").read_text("utf-8"))
    predictor = given["spec"]["predictor"]
    (container,) = predictor["containers"]
    pod = manifests["Deployment"]["spec"]["template"]["spec"]
    assert container["name"] == "kserve-container"  # the one that KServe asks
    assert container["image"] == pod["containers"][0]["image"]
    assert predictor["securityContext"] == pod["securityContext"]
    variables = {item["name"]: item["value"] for item in container["env"]}
    assert set(variables) - {"STORAGE_URI"} <= {*_VARIABLES, *_MODEL_VARIABLES}
    claim = next(v["persistentVolumeClaim"]["claimName"] for v in pod["volumes"] if "persistentVolumeClaim" in v)
    assert variables["STORAGE_URI"] == f"pvc://{claim}"
    assert container["ports"][0]["containerPort"] == int(variables["HTTP_PORT"])
    for name in ("livenessProbe", "readinessProbe"):
        assert container[name]["httpGet"]["path"] in OPEN_PATHS
        assert container[name]["httpGet"]["port"] == int(variables["HTTP_PORT"])
