#!/usr/bin/env bash
# Runs one command on TPU slices of a GKE cluster, through xpk (see gke_xpk.md).
#
#   launch/gke_xpk.sh run --name a --cluster CLUSTER --zone ZONE --type v5litepod-16 -- \
#       python -m spectral_flax.train --config configs/vit_ti.py:cifar100 --workdir gs://BUCKET/runs/a
#   launch/gke_xpk.sh logs --name a --cluster CLUSTER --zone ZONE
#   launch/gke_xpk.sh delete --name a --cluster CLUSTER --zone ZONE
#
# run: builds the image with the files of this repository, starts the workload, and lets Kubernetes
# start it again after a preemption, up to --retries times; the same command resumes.
# Other verbs: create (the cluster), list, logs, delete (the workload).
set -euo pipefail

verb=${1-} name='' cluster='' zone='' type='' project='' slices=1 retries=10 image=python:3.12
spot='' dry_run=false

usage() {
  sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"
  echo 'flags: --name NAME --cluster NAME --zone ZONE --type TYPE --project ID --slices N'
  echo '  --retries N --image IMAGE --spot --dry-run'
}
fail() {
  echo "error: $*; see --help" >&2
  exit 1
}
do_it() {
  if $dry_run; then
    printf '%q ' "$@"
    echo
  else
    "$@"
  fi
}

case $verb in
  '' | --help | -h) usage && exit 0 ;;
esac
shift
while (($#)); do
  case $1 in
    --name | --cluster | --zone | --type | --project | --slices | --retries | --image)
      (($# > 1)) || fail "$1 needs a value"
      declare "${1#--}=$2"
      shift 2
      ;;
    --spot) spot=$1 && shift ;;
    --dry-run) dry_run=true && shift ;;
    --) shift && break ;;
    *) fail "unknown flag '$1'" ;;
  esac
done
[[ -n $cluster && -n $zone ]] || fail '--cluster and --zone are needed'
where=(--cluster "$cluster" --zone "$zone")
[[ -z $project ]] || where+=(--project "$project")

need_name() { [[ -n $name ]] || fail '--name is needed'; }
need_type() { [[ -n $type ]] || fail '--type is needed, such as v5litepod-16'; }

case $verb in
  create)
    need_type
    do_it xpk cluster create "${where[@]}" --tpu-type "$type" --num-slices "$slices" \
      ${spot:+"$spot"}
    ;;
  run)
    need_name && need_type
    (($#)) || fail 'no command; write it after --'
    root=$(git -C "$(dirname "$0")" rev-parse --show-toplevel)
    # Kubernetes sends SIGTERM before a preemption: exec makes the run its receiver.
    do_it xpk workload create "${where[@]}" --workload "$name" --tpu-type "$type" \
      --num-slices "$slices" --max-restarts "$retries" --restart-on-user-code-failure \
      --base-docker-image "$image" --script-dir "$root" \
      --command "pip install --quiet -e . 'jax[tpu]' gcsfs && exec $(printf '%q ' "$@")"
    ;;
  list) do_it xpk workload list "${where[@]}" ;;
  logs)
    need_name
    do_it kubectl logs --follow --tail 50 --selector "jobset.sigs.k8s.io/jobset-name=$name" \
      --max-log-requests 1000 --prefix
    ;;
  delete)
    need_name
    do_it xpk workload delete "${where[@]}" --workload "$name"
    ;;
  *) fail "unknown verb '$verb'; expected create, run, list, logs or delete" ;;
esac
