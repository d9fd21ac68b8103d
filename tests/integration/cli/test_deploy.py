"""What ``deploy/`` has goes with what the commands, the package and the metrics really are."""

import os
import re
import shlex
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from dafka_console.cluster_view import ClusterView
from dafka_console.options import ConsoleOptions
from dafka_core import MetricsEndpoint, Producer, Store, Tower
from dafka_core.cli.app import app
from dafka_core.cli.flags import SETTINGS
from dafka_core.config.node_options import MetricsOptions, ReaderOptions, StoreOptions, TowerOptions
from dafka_core.config.options import Options
from dafka_core.testing import PATIENCE_S, wait_until
from scripts.hashes import LISTS
from tests.integration.ops.conftest import ask

ROOT = Path(__file__).resolve().parents[3]
DEPLOY = ROOT / "deploy"
PAGE = (ROOT / "docs/deploy.md").read_text("utf-8")
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
DOCKERFILE = (DEPLOY / "container/Dockerfile").read_text("utf-8").replace("\\\n", " ")
COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "compose/compose.yaml").read_text("utf-8"))
OBJECTS: list[dict[str, Any]] = [
    each
    for path in sorted((DEPLOY / "kubernetes").glob("*.yaml"))
    for each in yaml.safe_load_all(path.read_text("utf-8"))
]
PODS = [each["spec"]["template"] for each in OBJECTS if "template" in each.get("spec", {})]
CONTAINERS = [container for pod in PODS for container in pod["spec"]["containers"]]
SERVICES = {each["metadata"]["name"]: each for each in OBJECTS if each["kind"] == "Service"}

TABLES: dict[str, list[type[Options]]] = {
    "tower": [TowerOptions, MetricsOptions],
    "store": [StoreOptions, MetricsOptions],
    "console": [ConsoleOptions, ReaderOptions],
}
COMPONENT = "app.kubernetes.io/component"
PATHS = ("/metrics", "/healthz", "/readyz")


def lines() -> Iterator[tuple[str, list[str]]]:
    """Return each line of arguments for ``dafka``, with its file."""
    for path in UNITS:
        [line] = re.findall(r"^ExecStart=/opt/dafka/bin/dafka (.+)$", path.read_text("utf-8"), re.M)
        yield path.name, shlex.split(line.replace("%i", "a"))
    for name, service in COMPOSE["services"].items():
        if service["image"] == "dafka" and name != "keys":
            yield f"compose {name}", shlex.split(service["command"])
    for number, container in enumerate(CONTAINERS):
        yield f"kubernetes {container['name']} {number}", container["args"]


def settings(arguments: list[str]) -> dict[str, Any]:
    """Parse a line by the real parser and the options' tables."""
    root: Any = app
    context = root.make_context("dafka", [*arguments])
    name, command, rest = root.resolve_command(context, context._protected_args + context.args)
    parsed = command.make_context(name, rest, parent=context)
    found: dict[str, Any] = {}
    for table in TABLES[name]:
        given = {
            row: value
            for row, value in table.declared_in(parsed.params).items()
            if value not in (None, ())
        }
        table.build(given)
        found |= given
    return found


@pytest.fixture(autouse=True)
def without_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in SETTINGS:
        monkeypatch.delenv(f"DAFKA_{name.upper()}", raising=False)
    monkeypatch.setenv("DAFKA_CONFIG", "/dev/null")


@pytest.mark.parametrize(("whose", "arguments"), [*lines()], ids=[each[0] for each in lines()])
def test_each_line_is_one_that_dafka_takes(whose: str, arguments: list[str]) -> None:
    found = settings(arguments)
    if arguments[0] != "tower":
        assert found["host"] == "auto", whose
        assert found["wait_for_tower"], whose
    if arguments[0] != "console" and "service" not in whose:
        assert found["metrics"] == "*:9108", whose


def test_units_take_their_settings_from_the_file_and_a_second_store_has_its_own_ports(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DAFKA_CONFIG", str(DEPLOY / "systemd/dafka.toml"))
    lines_of = dict(lines())
    towers = settings(lines_of["dafka-tower.service"])
    first = settings(lines_of["dafka-store@.service"])
    assert len(first["tower"]) == 2
    for line in (DEPLOY / "systemd/store-b.env").read_text("utf-8").splitlines():
        if not line.startswith("#"):
            monkeypatch.setenv(*line.split("="))
    second = settings(lines_of["dafka-store@.service"])
    ports = [
        str(each[name]).rpartition(":")[2]
        for each in (first, second)
        for name in ("port", "flight_port", "metrics")
    ]
    ports += [str(towers[name]).rpartition(":")[2] for name in ("sub_address", "pub_address")]
    ports.append(towers["metrics"].rpartition(":")[2])
    assert sorted(ports) == [*map(str, (5556, 5557, *range(5560, 5564), *range(9107, 9110)))]


def roles(public: Path) -> list[str]:
    return re.findall(r'roles = "(.*)"', public.read_text("utf-8"))


def test_compose_makes_keys_with_which_its_services_work_together(tmp_path: Path) -> None:
    (script,) = COMPOSE["services"]["keys"]["command"]
    for place in ("keys", "metrics"):
        (tmp_path / place).mkdir(mode=0o700)
        script = script.replace(f" /{place}", f" {tmp_path}/{place}")
    environment = {**os.environ, "PATH": f"{ROOT}/.venv/bin:{os.environ['PATH']}"}
    for _ in range(2):  # a second start keeps them
        subprocess.run(["sh", "-euc", script], env=environment, check=True, capture_output=True)
    keys = tmp_path / "keys"
    token = (keys / "metrics_token").read_bytes()
    assert (tmp_path / "metrics/token").read_bytes() == token
    secrets = {}
    for name, service in COMPOSE["services"].items():
        said = service.get("environment", {})
        if "dafka" in service["image"] and name != "keys":
            assert said["DAFKA_ALLOWED_KEYS"] == "/keys"
            assert "keys:/keys:ro" in service["volumes"]
            secrets[name] = said["DAFKA_SECRET_KEY_FILE"].replace("/keys", str(keys))
    assert roles(Path(secrets["tower"]).with_suffix(".key")) == ["tower"]
    assert "/keys/console_token" in COMPOSE["services"]["console"]["command"]
    allowed = {"allowed_keys": str(keys)}

    def of(service: str) -> dict[str, Any]:
        return {"secret_key_file": secrets[service], **allowed}

    ports = dict.fromkeys(("sub_address", "pub_address"), "tcp://127.0.0.1:0")
    with (
        Tower(**ports, **of("tower")) as tower,
        Store(tmp_path / "store", tower=tower.tower, **of("store-1")) as store,
        Producer("t", tower=tower.tower, **of("spark-driver")) as producer,
        ClusterView({"tower": tower.tower, **of("console")}) as view,
    ):
        producer.publish(b"value")
        producer.flush(PATIENCE_S)
        wait_until(lambda: view.snapshot.partitions.topics == ["t"], "the console sees the topic")
        assert [each.store for each in view.snapshot.stores if each.here] == [store.address]


def test_systemd_and_kubernetes_start_with_keys() -> None:
    units = tomllib.loads((DEPLOY / "systemd/dafka.toml").read_text("utf-8"))
    files = {units["commands"][name]["secret_key_file"] for name in ("tower", "store")}
    assert files == {f"/etc/dafka/{name}.key_secret" for name in ("tower", "store")}
    assert all(f"/etc/dafka/{Path(each).name}" in PAGE for each in files)
    assert units["allowed_keys"] == "/etc/dafka/keys"
    assert "insecure" not in str(units) + str(COMPOSE) + str(OBJECTS).lower()
    [made] = [each for each in OBJECTS if each["kind"] == "Kustomization"]
    (public,) = made["configMapGenerator"]
    secrets = {each["name"]: each["files"][0].split("=") for each in made["secretGenerator"]}
    names = [Path(each).stem for each in public["files"]]
    assert names == ["tower", "store", "console", "client"]
    commands = re.findall(r"dafka keys new (\w+) --keys deploy/kubernetes/keys --role", PAGE)
    assert commands == names
    assert {f"keys/{name}.key_secret" for name in names} | {"keys/metrics_token"} == {
        source for _, source in secrets.values()
    }
    for pod in PODS:
        spec = pod["spec"]
        (container,) = spec["containers"]
        places = {each["name"]: each["mountPath"] for each in container["volumeMounts"]}
        said = {each["name"]: each["value"] for each in container["env"]}
        assert said["DAFKA_ALLOWED_KEYS"] == places["keys"]
        volumes = {each["name"]: each for each in spec["volumes"]}
        assert volumes["keys"]["configMap"] == {"name": public["name"]}
        component = pod["metadata"]["labels"][COMPONENT]
        assert volumes["key"]["secret"]["secretName"] == f"dafka-{component}-key"
        wanted = {"key": "DAFKA_SECRET_KEY_FILE", "metrics": "DAFKA_METRICS_TOKEN_FILE"}
        for name in wanted.keys() & volumes.keys():
            secret = volumes[name]["secret"]
            member, _ = secrets[secret["secretName"]]
            assert said[wanted[name]] == f"{places[name]}/{member}"
            # Kubernetes makes a pod's files readable for its group only.
            assert (secret["defaultMode"], "fsGroup" in spec["securityContext"]) == (0o440, True)
        assert ("metrics" in volumes) == ("--metrics=*:9108" in container["args"])


def test_everything_from_elsewhere_is_pinned_by_its_content() -> None:
    for path in (ROOT / ".github/workflows").iterdir():
        used = re.findall(r"uses: (\S+)", path.read_text("utf-8"))
        assert used
        assert [each for each in used if not re.search(r"@[0-9a-f]{40}$", each)] == []
    images = re.findall(r"^FROM (\S+:\S+)", DOCKERFILE, re.M)
    images += [each["image"] for each in COMPOSE["services"].values() if ":" in each["image"]]
    assert len(images) == 4
    assert [each for each in images if not re.search(r"@sha256:[0-9a-f]{64}$", each)] == []
    for line in re.findall(r"pip install ([^&]+)", DOCKERFILE):
        assert "--require-hashes" in line or "--no-deps --no-build-isolation" in line
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    (backend,) = project["build-system"]["requires"]
    assert backend in (ROOT / "hashes/build.txt").read_text("utf-8")


def test_paths_that_are_probed_and_scraped_are_there() -> None:
    asked = {
        container[probe]["httpGet"]["path"]
        for container in CONTAINERS
        for probe in ("livenessProbe", "readinessProbe")
        if "httpGet" in container.get(probe, {})
    }
    asked |= {*re.findall(r"http://127\.0\.0\.1:9108(/\w+)", DOCKERFILE)}
    asked |= {
        each["metadata"]["annotations"]["prometheus.io/path"]
        for each in PODS
        if "annotations" in each["metadata"]
    }
    assert asked == {*PATHS}
    with MetricsEndpoint() as endpoint:
        endpoint.expect("a store")
        assert [ask(f"{endpoint.url}{path}").status for path in PATHS] == [200, 200, 503]
        assert ask(f"{endpoint.url}/ready").status == 404


def test_kubernetes_names_ports_that_containers_listen_at() -> None:
    for pod in PODS:
        [container] = pod["spec"]["containers"]
        ports = {each["name"]: each["containerPort"] for each in container["ports"]}
        text = " ".join(container["args"])
        said = re.findall(r"--(?:\w+-address=tcp://\*:|port=|flight-port=|metrics=\*:)(\d+)", text)
        said += re.findall(r"--listen=127\.0\.0\.1:(\d+)", text)
        assert sorted(ports.values()) == sorted(map(int, said))
        for probe in ("livenessProbe", "readinessProbe"):
            if "httpGet" in container.get(probe, {}):
                assert ports[container[probe]["httpGet"]["port"]] == 9108
        for tower, *numbers in re.findall(r"--tower=([\w-]+):(\d+):(\d+)", text):
            assert [each["port"] for each in SERVICES[tower]["spec"]["ports"]] == [
                *map(int, numbers)
            ]
        mounts = {each["name"] for each in container["volumeMounts"]}
        assert mounts >= {each["name"] for each in pod["spec"]["volumes"]}


def test_each_service_of_kubernetes_has_a_pod_with_its_ports() -> None:
    for name, service in SERVICES.items():
        wanted = service["spec"]["selector"].items()
        [pod] = [each for each in PODS if wanted <= each["metadata"]["labels"].items()]
        named = {
            each["name"]: each["containerPort"] for each in pod["spec"]["containers"][0]["ports"]
        }
        for port in service["spec"]["ports"]:
            assert named[port["targetPort"]] == port["port"], name
    assert {each["spec"]["serviceName"] for each in OBJECTS if each["kind"] == "StatefulSet"} <= {
        *SERVICES
    }
    [kustomization] = [each for each in OBJECTS if each["kind"] == "Kustomization"]
    others = {path.name for path in (DEPLOY / "kubernetes").glob("*.yaml")}
    others.remove("kustomization.yaml")
    assert {*kustomization["resources"]} == others


def test_the_image_has_what_the_package_names() -> None:
    for name in re.findall(r"--requirement (\S+)", DOCKERFILE):
        assert Path(name).stem in LISTS
    assert {"image", "spark_image"} <= LISTS.keys()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    for name in project["tool"]["hatch"]["build"]["targets"]["wheel"]["only-include"]:
        assert f"COPY {name} {name}\n" in DOCKERFILE
    ignored = (DEPLOY / "container/Dockerfile.dockerignore").read_text("utf-8").splitlines()
    for line in re.findall(r"^COPY (?!--)(.+) \S+$", DOCKERFILE, re.MULTILINE):
        for name in line.split():
            assert (ROOT / name).exists()
            assert f"!{name.partition('/')[0]}" in ignored
    stages = {*re.findall(r"^FROM \S+ AS (\S+)$", DOCKERFILE, re.MULTILINE)}
    built = [each["build"] for each in COMPOSE["services"].values() if "build" in each]
    assert {each["target"] for each in built} == {"dafka", "dafka-spark"} <= stages
    for build in built:
        assert (DEPLOY / "compose" / build["context"] / build["dockerfile"]).is_file()
    [user] = {*re.findall(r"^USER (\d+):\d+$", DOCKERFILE, re.MULTILINE)}
    assert {str(pod["spec"]["securityContext"]["runAsUser"]) for pod in PODS} == {user}
    exposed = {
        int(port)
        for line in re.findall(r"^EXPOSE (.+)$", DOCKERFILE, re.M)
        for port in line.split()
    }
    assert {port["containerPort"] for each in CONTAINERS for port in each["ports"]} <= exposed


def test_compose_has_what_its_services_name() -> None:
    services = COMPOSE["services"]
    for service in services.values():
        assert {*service.get("depends_on", ())} <= {*services}
        for volume in service.get("volumes", ()):
            source = volume.partition(":")[0]
            there = (DEPLOY / "compose" / source).exists() if source[0] == "." else None
            assert there or source in COMPOSE["volumes"], volume
        for tower in re.findall(r"--tower (\w+):5556:5557", str(service.get("command"))):
            assert tower in services
    config = yaml.safe_load((DEPLOY / "compose/prometheus.yml").read_text("utf-8"))
    [job] = config["scrape_configs"]
    rules = (DEPLOY / "prometheus/dafka_rules.yml").read_text("utf-8")
    assert f'job="{job["job_name"]}"' in rules
    nodes = {name for name, each in services.items() if "--metrics" in str(each.get("command"))}
    assert {*job["static_configs"][0]["targets"]} == {f"{name}:9108" for name in nodes}
    mounted = dict(
        each.split(":")[1::-1]
        for name in ("prometheus", "grafana")
        for each in services[name]["volumes"]
    )
    assert [mounted[path] for path in config["rule_files"]] == ["../prometheus/dafka_rules.yml"]
    home = Path(services["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"])
    assert (DEPLOY / "compose" / mounted[str(home.parent)] / home.name).is_file()
    provided = (DEPLOY / "compose/grafana/dashboards/dafka.yaml").read_text("utf-8")
    assert f"path: {home.parent}" in provided


def test_opentelemetrys_collector_asks_where_nodes_answer() -> None:
    config = yaml.safe_load((DEPLOY / "opentelemetry/collector.yaml").read_text("utf-8"))
    [metrics] = config["service"]["pipelines"].values()
    assert {kind: [*config[kind]] for kind in metrics} == metrics  # everything
    [job] = config["receivers"]["prometheus"]["config"]["scrape_configs"]
    assert not {"metrics_path", "scheme"} & {*job}  # the usual ones, which are a node's
    [target] = job["static_configs"][0]["targets"]
    assert target == MetricsOptions.build({"metrics": "9108"}).metrics  # as the pages have it
    assert f'job="{job["job_name"]}"' in (DEPLOY / "prometheus/dafka_rules.yml").read_text("utf-8")


def keys_of_services() -> set[str]:
    return {key for each in COMPOSE["services"].values() for key in each}


def keys_of_pods() -> set[str]:
    parts = [*(pod["spec"] for pod in PODS), *CONTAINERS]
    return {key for part in parts for key in part} - {"containers", "name"}


def directives() -> set[str]:
    text = "\n".join(path.read_text("utf-8") for path in UNITS)
    return {*re.findall(r"^(\w+)=", text.partition("[Install]")[0], re.MULTILINE)}


@pytest.mark.parametrize("keys", [keys_of_services, keys_of_pods, directives])
def test_the_page_explains_each_setting(keys: Any) -> None:
    assert [key for key in sorted(keys()) if not re.search(rf"`{key}\b", PAGE)] == []
