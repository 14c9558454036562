#!/usr/bin/env bash
# Starts one run as several processes on this machine, joined over loopback.
#
#   launch/local.sh --processes 2 --devices 4 -- python -m spectral_flax.train --config configs/vit_ti.py
#
# Each process simulates DEVICES CPU devices; with --gpus N, process i sees the GPUs iN ... iN+N-1
# instead. Logs: DIR/process-0.log, ...; that of process 0 is shown. SIGTERM and Ctrl-C reach all
# processes, which save and leave. The exit code is the first that is not 0; when a process fails,
# the others are given GRACE seconds and then ended, since they would wait for it.
set -euo pipefail

processes=2 devices=1 gpus=0 port='' logs='' grace=30 dry_run=false

usage() { # the comment above
  sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"
  echo 'flags: --processes N --devices N --gpus N --port N --logs DIR --grace SECONDS --dry-run'
}
fail() {
  echo "error: $*; see --help" >&2
  exit 1
}

while (($#)); do
  case $1 in
    --processes | --devices | --gpus | --port | --logs | --grace)
      (($# > 1)) || fail "$1 needs a value"
      declare "${1#--}=$2"
      shift 2
      ;;
    --dry-run) dry_run=true && shift ;;
    --help | -h) usage && exit 0 ;;
    --) shift && break ;;
    *) fail "unknown flag '$1' (the command comes after --)" ;;
  esac
done
(($#)) || fail 'no command; write it after --'
for name in processes devices gpus grace; do
  [[ ${!name} =~ ^[0-9]+$ ]] || fail "--$name is '${!name}'; expected a whole number"
done
((processes > 0 && (devices > 0 || gpus > 0))) || fail '--processes and --devices must be at least 1'

if [[ -z $port ]]; then
  if $dry_run; then
    port=FREE_PORT
  else # a port that is free now; nothing keeps it until the coordinator takes it
    port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
  fi
fi
[[ -n $logs ]] || logs=$(if $dry_run; then echo NEW_DIRECTORY; else mktemp -d; fi)

environment() { # of process $1, one assignment a line
  echo "JAX_COORDINATOR_ADDRESS=127.0.0.1:$port"
  echo "JAX_NUM_PROCESSES=$processes"
  echo "JAX_PROCESS_ID=$1"
  if ((gpus)); then
    echo "CUDA_VISIBLE_DEVICES=$(seq -s, $(($1 * gpus)) $((($1 + 1) * gpus - 1)))"
  else
    echo 'JAX_PLATFORMS=cpu'
    echo "JAX_NUM_CPU_DEVICES=$devices"
  fi
}

pids=()
for ((i = 0; i < processes; i++)); do
  mapfile -t variables < <(environment "$i")
  if $dry_run; then
    printf 'env'
    printf ' %q' "${variables[@]}" "$@"
    printf ' >%q 2>&1 &\n' "$logs/process-$i.log"
  else
    mkdir -p "$logs"
    env "${variables[@]}" "$@" >"$logs/process-$i.log" 2>&1 &
    pids+=("$!")
  fi
done
if $dry_run; then
  printf 'tail -f %q\nwait\n' "$logs/process-0.log"
  exit 0
fi

echo "logs: $logs/process-*.log" >&2
tail -n +1 -F "$logs/process-0.log" 2>/dev/null &
tail_pid=$!
trap 'kill "$tail_pid" 2>/dev/null || true' EXIT
trap 'kill -TERM "${pids[@]}" 2>/dev/null || true' TERM INT

code=0
deadline=''
running=("${pids[@]}")
while ((${#running[@]})); do
  still=()
  for pid in "${running[@]}"; do
    if kill -0 "$pid" 2>/dev/null; then
      still+=("$pid")
      continue
    fi
    status=0
    wait "$pid" || status=$?
    if ((status && !code)); then
      code=$status
      deadline=$((SECONDS + grace))
      for ((i = 0; i < processes; i++)); do
        [[ ${pids[i]} != "$pid" ]] || echo "process $i ended with exit code $status" >&2
      done
    fi
  done
  running=("${still[@]}")
  if [[ -n $deadline ]] && ((SECONDS > deadline && ${#running[@]})); then
    echo "ending the ${#running[@]} processes that are left" >&2
    kill -KILL "${running[@]}" 2>/dev/null || true
    deadline=$((SECONDS + grace))
  fi
  sleep 0.2
done
sleep 0.3 # the last lines of the log
exit "$code"
