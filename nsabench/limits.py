"""Limit the files that nsabench reads, in bytes or entries. Runs of 10,000 cases are allowed."""

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30

MEMORY = 8 * GIB  # the memory of a process that reads files from others

MATRIX = MIB  # a matrix, or another small file
DEPTH = 32  # levels of nesting in a YAML file
CASES = 100_000  # cases of one matrix
PLAN = 64 * MIB
FAULTS = 100  # if a document has more faults, the error only says how many there are

FILE = GIB  # any file of a run
FILES = 100_000  # the files of a run; a manifest names fewer
FOLDER = 4 * GIB  # all files of a run
MANIFEST = 4 * MIB  # a run of 10,000 cases has one of 2 MB
ENVIRONMENT = 8 * MIB

LOG = 512 * MIB  # log.jsonl
LOG_LINE = 16 * MIB
LOG_LINES = 2_000_000  # each line has a seal to check
PRINTED = 64 * KIB  # the end of what a kernel printed

CSV = 8 * MIB
CSV_ROWS = 20_000
CSV_COLUMNS = 500

TABLE = 512 * MIB  # a Parquet file
COLUMNS = 1000
RECORDS = 300_000  # rows
COMPARISONS = 6 * RECORDS  # rows; a record has up to three regimes with two references each
SAMPLES = 50_000_000  # rows
UNPACKED = 4 * GIB  # the unpacked columns of a table
