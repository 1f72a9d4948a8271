"""A cluster whose nodes are real: kubelet, containerd and runc, each in a network namespace, with DNS.

Pods have addresses, talk across nodes, find each other by the names of headless Services, and reach the API server as
they would anywhere. Of Services with an address of their own only `kubernetes` answers, unless kube-proxy is asked for.
"""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from tests.kubernetes.testcluster import binaries, images, leftovers, networks
from tests.kubernetes.testcluster.control_plane import API_SERVICE, CLIENT_QPS, INTERNAL, ControlPlane
from tests.kubernetes.testcluster.errors import Broken, Unavailable
from tests.kubernetes.testcluster.fakes import is_ready
from tests.kubernetes.testcluster.processes import Server

DEBIAN_PACKAGES = ("containerd", "runc", "containernetworking-plugins", "iproute2", "mmdebstrap")
PROGRAMS = ("containerd", "runc", "ctr", "ip", "nsenter", "mmdebstrap")
CNI_PROGRAMS = Path("/usr/lib/cni")
DECLINED = "TESTCLUSTER_NO_SYSTEM_PACKAGES"
"""The variable that says that nothing is to be installed, and by which option."""
DEVICE_PLUGINS = Path("/var/lib/kubelet/device-plugins")
"""Where every kubelet listens for device plugins, whatever its own directory is."""


class RealCluster(ControlPlane):
    """A control plane with real nodes ``node-1``, ``node-2`` and on; see `ControlPlane` for the rest.

    ``kill`` and ``restart`` know ``kubelet-1``, ``containerd-1`` and ``kube-proxy-1`` too, and so on for each node.

    Args:
        services: Whether each node has a kube-proxy, so that pods reach every Service at its own address.
        given: Directories of this machine that every container finds at these places and can only read. The nodes'
            runtime puts them in, as it does with GPU drivers, so that no pod and no image speaks of them.
    """

    def __init__(
        self,
        nodes: int = 2,
        *,
        version: str = binaries.DEFAULT,
        users: Mapping[str, Sequence[str]] | None = None,
        audit: bool = False,
        client_qps: int | None = CLIENT_QPS,
        flags: Mapping[str, Sequence[str]] | None = None,
        services: bool = False,
        given: Mapping[str, Path] | None = None,
    ) -> None:
        require()
        if services:
            # kube-proxy turns away whoever asks for a Service without endpoints, and so for the API server's own.
            given_flags = (flags or {}).get("apiserver", ())
            flags = {**(flags or {}), "apiserver": ["--endpoint-reconciler-type=lease", *given_flags]}
        super().__init__(version=version, users=users, audit=audit, client_qps=client_qps, flags=flags)
        self.nodes = [f"node-{index}" for index in range(1, nodes + 1)]
        self._relay: Server | None = None
        self._control = ""
        self._networks: dict[str, networks.NodeNetwork] = {}
        self._services = services
        self._given = given or {}

    def restart(self, name: str) -> None:
        super().restart(name)
        if name.startswith("containerd-"):
            server = self._servers[name]
            # The last that it says before it serves kubelets; it answers others long before, and kubelet ends at a no.
            server.until(lambda: server.said("Start streaming server"), "service for kubelet")

    def await_node(self, name: str) -> None:
        """Wait until a node takes pods."""
        path = f"/api/v1/nodes/{name}"
        server = self._servers[f"kubelet-{name.removeprefix('node-')}"]
        server.until(lambda: self.exists(path) and is_ready(self.request("GET", path)), f"{name} to be ready")

    def kill_node(self, name: str) -> None:
        """The machine loses its power: its servers and containers are gone at once, and nobody is told."""
        number = name.removeprefix("node-")
        for server in ("kubelet", "containerd"):
            self.kill(f"{server}-{number}")
        for cgroup in leftovers.cgroups(f"{self.home.name}/{number}"):
            for pid in (cgroup / "cgroup.procs").read_text().split():
                with contextlib.suppress(ProcessLookupError):  # those of a killed server may end by themselves
                    os.kill(int(pid), signal.SIGKILL)

    def start_node(self, name: str) -> None:
        """The machine is switched on again."""
        number = name.removeprefix("node-")
        self.restart(f"containerd-{number}")
        self.restart(f"kubelet-{number}")
        self.await_node(name)

    def import_image(self, archive: Path) -> None:
        """Bring an image to all nodes; pods use it with ``imagePullPolicy: Never``. See `images` for making one."""
        for name in self.nodes:
            done = _ctr(self._directory(name), "images", "import", str(archive))
            if done.returncode:
                raise Broken(f"{archive} was not imported: {done.stderr}")

    def _bring_up(self) -> None:
        programs = binaries.ensure(self.version, binaries.REAL_NODES)
        proxy = binaries.ensure_kube_proxy() if self._services else None
        image = images.python_image()
        super()._bring_up()
        self._start_dns(programs["coredns"])
        for name in self.nodes:
            self._describe_node(name, programs["kubelet"])
            self.restart(f"containerd-{name.removeprefix('node-')}")
        self.import_image(image)
        for name in self.nodes:
            self.restart(f"kubelet-{name.removeprefix('node-')}")
        for name in self.nodes:
            self.await_node(name)
        if proxy is not None:
            for name in self.nodes:
                self._start_proxy(name, proxy)

    def _prepare(self) -> None:
        self._control, made = networks.make(self.home.name, len(self.nodes))
        self._networks = dict(zip(self.nodes, made, strict=True))
        with socket.create_server(("127.0.0.1", self._api_port), backlog=1024) as listener:
            argv = [sys.executable, str(Path(__file__).with_name("relaying.py")), str(listener.fileno())]
            log = self.home / "relay.log"
            relay = Server(
                "relay", [*argv, API_SERVICE, "443"], log, network=self._control, pass_fds=[listener.fileno()]
            )
            relay.start()
        self._relay = relay

    def stop(self, *, keep_logs: bool = False) -> None:
        if self._relay is not None:
            self._relay.kill()
        super().stop(keep_logs=keep_logs)

    @property
    def control_network(self) -> str:
        """The network namespace of the control plane, which pods reach at `networks.CONTROL_PLANE`."""
        return self._control

    @property
    def _network(self) -> str | None:
        return self._control

    @property
    def _internal_url(self) -> str:
        return f"https://{API_SERVICE}"

    @property
    def _listening(self) -> list[str]:
        addresses = ["--bind-address=0.0.0.0", f"--advertise-address={networks.CONTROL_PLANE}", "--secure-port=443"]
        return [*addresses, "--kubelet-preferred-address-types=InternalIP"]

    def _directory(self, node: str) -> Path:
        return self.home / node

    def _start_dns(self, program: Path) -> None:
        corefile = self.home / "Corefile"
        corefile.write_text(COREFILE.format(kubeconfig=self.home / INTERNAL))
        argv = [str(program), "-conf", str(corefile)]
        server = Server("coredns", argv, self.home / "coredns.log", network=self._control)
        self._servers["coredns"] = server
        server.start()
        server.until(lambda: server.said("CoreDNS-"), "greeting")

    def _start_proxy(self, name: str, program: Path) -> None:
        number = name.removeprefix("node-")
        config = self._directory(name) / "kube-proxy.yaml"
        config.write_text(yaml.safe_dump(_proxy(name, self.home / INTERNAL)))
        argv, log = [str(program), f"--config={config}", "--v=2"], self.home / f"kube-proxy-{number}.log"
        server = Server(f"kube-proxy-{number}", argv, log, network=self._networks[name].namespace)
        self._servers[f"kube-proxy-{number}"] = server
        server.start()
        server.until(lambda: server.said("SyncProxyRules complete"), "first rules")

    def _describe_node(self, name: str, kubelet: Path) -> None:
        number = name.removeprefix("node-")
        directory = self._directory(name)
        network = self._networks[name]
        for part in ("cni", "addresses", "kubelet", "pod-logs", "device-plugins", "namespaces"):
            (directory / part).mkdir(parents=True)
        (directory / "resolv.conf").touch()
        (directory / "container.json").write_text(json.dumps(_container(self._given)))
        (directory / "containerd.toml").write_text(CONTAINERD.format(directory=directory, sandbox=images.PYTHON))
        (directory / "cni" / "10-pods.conflist").write_text(json.dumps(_cni(network.pods, directory)))
        cgroup = f"/{self.home.name}/{number}"
        (directory / "kubelet.yaml").write_text(yaml.safe_dump(_kubelet(directory, cgroup)))
        _make_cgroup(cgroup)
        mounts = _make_mount_namespace(directory)
        argv = {
            "containerd": ["containerd", f"--config={directory}/containerd.toml"],
            "kubelet": [
                str(kubelet),
                f"--config={directory}/kubelet.yaml",
                f"--kubeconfig={self.home / INTERNAL}",
                f"--root-dir={directory}/kubelet",
                f"--cert-dir={directory}/certificates",
                f"--hostname-override={name}",
                f"--node-ip={network.address}",
            ],
        }
        for server, command in argv.items():
            log = self.home / f"{server}-{number}.log"
            self._servers[f"{server}-{number}"] = Server(
                f"{server}-{number}", command, log, network=network.namespace, mounts=mounts
            )


def require() -> None:
    """Raise `Unavailable` with what this machine lacks; what Debian has is installed, unless somebody has declined."""
    if os.geteuid() != 0:
        raise Unavailable("real nodes need root: they make network namespaces and run containers")
    if not (leftovers.CGROUPS / "memory").is_dir():
        raise Unavailable("real nodes need cgroup v1, the only one that they have been seen to run on")
    by = os.environ.get(DECLINED)
    if may_install() and not by:
        binaries.cache().mkdir(parents=True, exist_ok=True)
        with binaries.alone(binaries.cache()):
            if may_install():
                _install()
    if lacking := _lacking():
        declined = f" ({by} has declined that)" if by else ""
        raise Unavailable(
            f"real nodes need {', '.join(lacking)}: apt-get install {' '.join(DEBIAN_PACKAGES)}{declined}"
        )


def may_install() -> bool:
    """Whether something is missing that this user could install."""
    return bool(_lacking()) and os.geteuid() == 0 and shutil.which("apt-get") is not None


def _install() -> None:
    binaries.say(f"installing {', '.join(DEBIAN_PACKAGES)} with apt-get ...")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for argv in (["update", "-q"], ["install", "-y", "-q", "--no-install-recommends", *DEBIAN_PACKAGES]):
        subprocess.run(["apt-get", *argv], env=environment, check=False, capture_output=True, timeout=600)


def _lacking() -> list[str]:
    missing = [program for program in PROGRAMS if shutil.which(program) is None]
    return missing if (CNI_PROGRAMS / "bridge").exists() else [*missing, "CNI plugins"]


def _ctr(node: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    argv = ["ctr", "--address", f"{node}/containerd.sock", "--namespace", "k8s.io", *arguments]
    return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=120)


def _container(given: Mapping[str, Path]) -> dict[str, Any]:
    """What every container is made from: containerd's own description, and the directories."""
    done = subprocess.run(["ctr", "oci", "spec"], capture_output=True, check=True, timeout=60)
    base: dict[str, Any] = json.loads(done.stdout)
    for destination, source in given.items():
        options = ["rbind", "ro", "nosuid", "nodev"]
        base["mounts"].append({"destination": destination, "type": "bind", "source": str(source), "options": options})
    return base


def _make_mount_namespace(directory: Path) -> Path:
    """The mount namespace of a node, in which the place for device plugins is its own and not every kubelet's."""
    kept = directory / "namespaces"
    place = kept / "mount"
    place.touch()
    DEVICE_PLUGINS.mkdir(parents=True, exist_ok=True)
    # The kernel binds a mount namespace only where no other would see it.
    for command in (
        f"mount --bind {kept} {kept}",
        f"mount --make-private {kept}",
        f"unshare --mount={place} mount --bind {directory}/device-plugins {DEVICE_PLUGINS}",
    ):
        done = subprocess.run(command.split(), capture_output=True, text=True, check=False, timeout=60)
        if done.returncode:
            raise Broken(f"{command}: {done.stderr}")
    return place


def _make_cgroup(path: str) -> None:
    """Kubelet wants its cgroup to exist in every hierarchy, and a new cpuset has no processors or memory of its own."""
    for top in leftovers.hierarchies():
        place = top
        for part in path.strip("/").split("/"):
            place = place / part
            place.mkdir(exist_ok=True)
            for setting in ("cpuset.cpus", "cpuset.mems"):
                if top.name == "cpuset":
                    (place / setting).write_text((place.parent / setting).read_text())


def _cni(subnet: str, directory: Path) -> dict[str, object]:
    addresses = {"type": "host-local", "dataDir": f"{directory}/addresses", "ranges": [[{"subnet": subnet}]]}
    return {
        "cniVersion": "0.4.0",
        "name": "pods",
        "plugins": [
            {
                "type": "bridge",
                "bridge": "pods",
                "isGateway": True,
                "hairpinMode": True,
                "ipam": {**addresses, "routes": [{"dst": "0.0.0.0/0"}]},
            }
        ],
    }


def _kubelet(directory: Path, cgroup: str) -> dict[str, object]:
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "containerRuntimeEndpoint": f"unix://{directory}/containerd.sock",
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": cgroup,
        "failCgroupV1": False,
        "failSwapOn": False,
        "oomScoreAdj": 0,  # less needs a capability that a container's root may not have
        "enforceNodeAllocatable": ["pods"],
        "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
        "authorization": {"mode": "AlwaysAllow"},  # only the control plane is in its network
        "clusterDNS": [networks.DNS_SERVICE],
        "clusterDomain": "cluster.local",
        "resolvConf": f"{directory}/resolv.conf",
        "podLogsDir": f"{directory}/pod-logs",
        "staticPodPath": "",
        "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
        "imageGCHighThresholdPercent": 100,
        "nodeStatusUpdateFrequency": "2s",
        "nodeLeaseDurationSeconds": 8,
        "shutdownGracePeriod": "0s",
    }


def _proxy(name: str, kubeconfig: Path) -> dict[str, object]:
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "hostnameOverride": name,
        "clientConnection": {"kubeconfig": str(kubeconfig)},
        "mode": "iptables",
        "clusterCIDR": networks.PODS,
        # Pods of one node answer each other by their bridge, past the rules that would turn the answer round again.
        "iptables": {"masqueradeAll": True},
        "conntrack": {"maxPerCore": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
    }


CONTAINERD = """\
version = 2
root = "{directory}/containerd/root"
state = "{directory}/containerd/state"
disabled_plugins = ["io.containerd.internal.v1.opt", "io.containerd.snapshotter.v1.btrfs"]

[grpc]
  address = "{directory}/containerd.sock"

[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{sandbox}"
  restrict_oom_score_adj = true  # a container's root may not lower it, and every sandbox would die
  netns_mounts_under_state_dir = true
  [plugins."io.containerd.grpc.v1.cri".containerd]
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      base_runtime_spec = "{directory}/container.json"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        SystemdCgroup = false
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "{directory}/cni"
"""

COREFILE = """\
.:53 {{
    errors
    kubernetes cluster.local in-addr.arpa {{
        kubeconfig {kubeconfig} test
        ttl 1
    }}
}}
"""
