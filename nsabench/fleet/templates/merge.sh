#!/bin/bash
# Made by `nsabench fleet slurm`: one run out of all shards, after the last of them has ended.
@DIRECTIVES@
set -u
@VARIABLES@
exec @START@ fleet collect @FLEET@
