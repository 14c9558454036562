#!/usr/bin/env bash
# Runs one command on all hosts of a TPU slice, from a laptop.
#
#   launch/tpu_pod.sh run --name pod --zone us-central2-b --type v4-32 --spot -- \
#       python -m spectral_flax.train --config configs/vit_ti.py:cifar100 --workdir gs://BUCKET/runs/a
#   launch/tpu_pod.sh logs --name pod --zone us-central2-b --worker 3
#   launch/tpu_pod.sh delete --name pod --zone us-central2-b
#
# run: makes the queued resource, or reuses the one of that name; copies the files that git tracks;
# installs them once; runs the command on every host in the background and shows the log of host 0;
# ends with the worst exit code of all hosts. After a preemption it makes the resource again and runs
# the same command, which resumes, up to --retries times. Interrupting it leaves the hosts running:
# the same command joins them again. The resource stays until `delete`.
# Other verbs: create (waits until it is there), copy, logs (follows one host), status, stop, delete.
set -euo pipefail

verb=${1-} name='' zone='' type='' project='' runtime=tpu-ubuntu2204-base
tier='' retries=10 worker=0 separate=false dry_run=false poll=30
readonly HOME_DIR=spectral_flax_code # on the hosts, below their home; also in host_script

usage() {
  sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"
  echo 'flags: --name NAME --zone ZONE --type TYPE --project ID --runtime VERSION --spot'
  echo '  --reserved --retries N --worker I --separate (a shard of a sweep for each host) --dry-run'
}
fail() {
  echo "error: $*; see --help" >&2
  exit 1
}

parse() {
  while (($#)); do
    case $1 in
      --name | --zone | --type | --project | --runtime | --retries | --worker)
        (($# > 1)) || fail "$1 needs a value"
        declare -g "${1#--}=$2"
        shift 2
        ;;
      --spot | --reserved) tier=$1 && shift ;;
      --separate) separate=true && shift ;;
      --dry-run) dry_run=true && shift ;;
      --) shift && break ;;
      *) fail "unknown flag '$1'" ;;
    esac
  done
  command=("$@")
  [[ -n $name && -n $zone ]] || fail '--name and --zone are needed'
  where=(--zone "$zone")
  [[ -z $project ]] || where+=(--project "$project")
}

# Prints a command, or runs it.
do_it() {
  if $dry_run; then
    printf '%q ' "$@"
    echo
  else
    "$@"
  fi
}
note() { if $dry_run; then echo "# $*"; else echo "$*" >&2; fi; }

tpus() { do_it gcloud compute tpus "$@" "${where[@]}"; }
on_host() { # worker or all, then a command line of bash
  tpus tpu-vm ssh "$name" --worker "$1" --command "$2"
}

state() { # of the queued resource: NONE, WAITING_FOR_RESOURCES, PROVISIONING, ACTIVE, SUSPENDED, ...
  gcloud compute tpus queued-resources describe "$name" "${where[@]}" \
    --format 'value(state.state)' 2>/dev/null || echo NONE
}

create() {
  [[ -n $type ]] || fail '--type is needed, such as v4-32'
  local now=NONE
  $dry_run || now=$(state)
  case $now in
    FAILED | SUSPENDED | SUSPENDING)
      note "the queued resource is $now: made again"
      remove
      now=NONE
      ;;
  esac
  note "makes the queued resource $name unless it is there"
  if [[ $now == NONE ]]; then
    tpus queued-resources create "$name" --node-id "$name" --accelerator-type "$type" \
      --runtime-version "$runtime" ${tier:+"$tier"}
  fi
  note 'waits until it is ACTIVE'
  $dry_run && return
  until [[ $now == ACTIVE ]]; do
    sleep "$poll"
    now=$(state)
    note "$(date +%T) $name is $now"
    case $now in FAILED | SUSPENDED | NONE) fail "the queued resource is $now" ;; esac
  done
}

copy() {
  local archive=/tmp/$HOME_DIR.tar.gz root
  root=$(git -C "$(dirname "$0")" rev-parse --show-toplevel)
  note "copies the tracked files of $root and installs them"
  if $dry_run; then
    echo "git -C $root ls-files -z | tar --null -C $root -T - -czf $archive"
  else
    git -C "$root" ls-files -z | tar --null -C "$root" -T - -czf "$archive"
  fi
  tpus tpu-vm scp "$archive" "$name:$archive" --worker all
  # The images come with Python 3.10; uv brings a newer one.
  on_host all "set -e; mkdir -p ~/$HOME_DIR; tar -xzf $archive -C ~/$HOME_DIR; cd ~/$HOME_DIR; \
python3 -m pip install --quiet --user uv; U=~/.local/bin/uv; \
[ -d ~/venv ] || \$U venv --quiet --python 3.12 ~/venv; \
\$U pip install --quiet --python ~/venv/bin/python -e . 'jax[tpu]' gcsfs"
}

# What a host runs: the command in the background, its log and its exit code in files. Every host
# knows its number from the metadata server. The variables are what JAX would find out by itself;
# set, they let the hosts call the roll first, so that one that is missing is named. With --separate
# each host is alone with its chips and does its part of a sweep.
# shellcheck disable=SC2016 # the hosts expand it
host_script() {
  printf 'cat >~/command.sh <<"END"\n'
  cat <<'HOST'
cd ~/spectral_flax_code && . ~/venv/bin/activate
ask() { curl -s -H Metadata-Flavor:Google "$ATTRIBUTES/$1"; }
ATTRIBUTES=http://metadata.google.internal/computeMetadata/v1/instance/attributes
HOST_INDEX=$(ask agent-worker-number)
ENDPOINTS=$(ask worker-network-endpoints) # NAME:ID:ADDRESS,... or ADDRESS,...
HOSTS=$(tr , '\n' <<<"$ENDPOINTS" | grep -c .)
FIRST=${ENDPOINTS%%,*}
HOST
  if $separate; then
    printf 'TPU_PROCESS_BOUNDS=1,1,1 TPU_CHIPS_PER_PROCESS_BOUNDS=2,2,1 '
    printf '%q ' "${command[@]}" --shard
    printf '"$HOST_INDEX/$HOSTS"\n'
  else
    printf 'JAX_COORDINATOR_ADDRESS="${FIRST##*:}:8482" JAX_NUM_PROCESSES="$HOSTS" '
    printf 'JAX_PROCESS_ID="$HOST_INDEX" '
    printf '%q ' "${command[@]}"
    printf '\n'
  fi
  cat <<'HOST'
echo $? >~/logs/exit
END
mkdir -p ~/logs
if ! { [ -e ~/logs/pid ] && kill -0 "$(cat ~/logs/pid)" 2>/dev/null; }; then
  rm -f ~/logs/exit
  setsid nohup bash ~/command.sh >>~/logs/run.log 2>&1 </dev/null &
  echo $! >~/logs/pid
fi
HOST
}

follow() { # the log of host $1, until its process ends
  on_host "$1" "tail -n 50 -F ~/logs/run.log --pid \$(cat ~/logs/pid)"
}

worst_code() { # of all hosts; nothing where a host cannot be reached or still runs
  gcloud compute tpus tpu-vm ssh "$name" "${where[@]}" --worker all \
    --command 'until [ -e ~/logs/exit ]; do sleep 5; done; cat ~/logs/exit' 2>/dev/null | sort -n | tail -1
}

run() {
  ((${#command[@]})) || fail 'no command; write it after --'
  local attempt code
  for ((attempt = 0; attempt <= retries; attempt++)); do
    create
    copy
    note 'starts the command on all hosts and shows the log of host 0'
    on_host all "$(host_script)"
    follow 0 || true
    if $dry_run; then
      note "ends with the worst exit code of all hosts; after a preemption, again, $retries times"
      return
    fi
    code=$(worst_code) || code=''
    if [[ -n $code && $(state) == ACTIVE ]]; then
      exit "$code"
    fi
    note "$name was preempted; attempt $((attempt + 2)) of $((retries + 1))"
    remove
  done
  fail "preempted $((retries + 1)) times"
}

remove() {
  tpus queued-resources delete "$name" --force --quiet
  $dry_run && return
  until [[ $(state) == NONE ]]; do sleep "$poll"; done
}

case $verb in
  '' | --help | -h) usage && exit 0 ;;
esac
shift
parse "$@"
case $verb in
  create | copy | run) "$verb" ;;
  logs) follow "$worker" ;;
  stop) on_host all "kill -TERM -- -\$(cat ~/logs/pid)" ;; # all of its session
  status) tpus queued-resources describe "$name" ;;
  delete) remove ;;
  *) fail "unknown verb '$verb'; expected run, create, copy, logs, status, stop or delete" ;;
esac
