#!/usr/bin/env bash
# Fetches what the benchmarks compare with, each version pinned, into the folder LEDGERMQ_RIVALS (.cache/rivals in
# the checkout unless set), and builds the load programs of bench/java and bench/nats there. What is there stays.
#
#   lib/           RocketMQ broker, name server and client (Maven)
#   lib-proxy/     RocketMQ proxy (Maven)
#   lib-grpc/      RocketMQ's Java client for gRPC (Maven)
#   nats-server    NATS with JetStream (go install)
#   classes/       bench/java, compiled
#   nats-load      bench/nats, built
#
# usage: bench/get_rivals.sh [java|nats]...   both unless named
set -euo pipefail
ROCKETMQ_VERSION=5.5.0
GRPC_CLIENT_VERSION=5.2.0
NATS_VERSION=v2.15.2

HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
RIVALS=${LEDGERMQ_RIVALS:-$HERE/../.cache/rivals}
mkdir -p "$RIVALS"
RIVALS=$(cd "$RIVALS" && pwd)

say() { printf '%s\n' "$*" >&2; }
need() {
  command -v "$1" >/dev/null || { say "error: $1 is not on the PATH; it is needed for $2."; exit 1; }
}

# fetch WHAT VERSION POM FOLDER JAR: into the folder, unless that jar is there
fetch() {
  local what=$1 version=$2 pom=$3 folder=$RIVALS/$4 jar=$5
  [ ! -e "$folder/$jar-$version.jar" ] || return 0
  need mvn "fetching RocketMQ"
  say "Fetching $what $version with Maven ..."
  mvn -q -B -Dstyle.color=never -f "$pom" "-Drocketmq.version=$version" \
    dependency:copy-dependencies "-DoutputDirectory=$folder"
}

get_java() {
  need javac "the Java broker and client (a JDK of 17 or newer)"
  fetch RocketMQ "$ROCKETMQ_VERSION" "$HERE/java/pom.xml" lib rocketmq-broker
  fetch "RocketMQ's proxy" "$ROCKETMQ_VERSION" "$HERE/java/proxy/pom.xml" lib-proxy rocketmq-proxy
  fetch "RocketMQ's Java client for gRPC" "$GRPC_CLIENT_VERSION" \
    "$HERE/../tests/integration/java/grpc/pom.xml" lib-grpc rocketmq-client-java
  mkdir -p "$RIVALS/classes"
  javac -encoding UTF-8 -Xlint:all -Werror -d "$RIVALS/classes" -cp "$RIVALS/lib/rocketmq-client-$ROCKETMQ_VERSION.jar:$RIVALS/lib/rocketmq-common-$ROCKETMQ_VERSION.jar:$RIVALS/lib/rocketmq-remoting-$ROCKETMQ_VERSION.jar:$RIVALS/lib-grpc/rocketmq-client-java-$GRPC_CLIENT_VERSION.jar" "$HERE"/java/*.java
}

get_nats() {
  need go "NATS"
  if [ ! -x "$RIVALS/nats-server" ]; then
    say "Building nats-server $NATS_VERSION ..."
    GOBIN="$RIVALS" go install "github.com/nats-io/nats-server/v2@$NATS_VERSION"
  fi
  (cd "$HERE/nats" && go build -o "$RIVALS/nats-load" .)
}

[ $# -gt 0 ] || set -- java nats
for rival in "$@"; do
  case $rival in
    java) get_java ;;
    nats) get_nats ;;
    *) say "error: unknown rival $rival; known are java and nats."; exit 2 ;;
  esac
done
printf '%s\n' "$RIVALS"
