"""The limits, each well above the largest honest file.

The largest published run has 188 cases: a plan of 0.2 MB, a journal of 8 MB with lines of up to
80 KB, tables of 0.2 and 0.5 MB. The limits are for 10,000 cases and more.
"""

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30

MATRIX = MIB  # a matrix, or another YAML file that a person writes
MATRIX_NODES = 50_000  # values, keys and items, each as often as aliases repeat it
CASES = 100_000  # that a matrix may span
PLAN = 64 * MIB
PLAN_NODES = 1_000_000
DEPTH = 32  # of a YAML file; a plan has 6
NUMBER = 400  # characters of a number in YAML

FILE = GIB  # any file of a run
FILES = 100_000  # of a run; a manifest names fewer
FOLDER = 4 * GIB  # all of them together
MANIFEST = 4 * MIB  # a run of 10,000 cases has one of 2 MB
ENVIRONMENT = 8 * MIB
FAULTS = 100  # of one document, that are told apart

JOURNAL = GIB
JOURNAL_LINE = 16 * MIB
LINES_A_CASE = 10  # of a journal: a pass has one
SITTINGS = 5_000  # lines beside those
LOG = 64 * KIB  # of the end of a log that a report shows

COMPARISON = 16 * MIB  # a page of one
CSV = 8 * MIB
CSV_ROWS = 20_000
CSV_COLUMNS = 500
CSV_CELLS = 1_000_000
CSV_CELL = 10_000  # characters of one

TABLE = 512 * MIB  # a Parquet file
FOOTER = 2 * MIB
COLUMNS = 1000
RECORDS = 300_000  # rows
SAMPLES = 50_000_000  # rows
STATED = 10_000  # different things that records state of where they are from
PAGES = 50_000
PAGE = 16 * MIB  # of a column, unpacked; a writer makes them of 1 MB
PAGES_AT_ONCE = 512 * MIB  # the largest pages of all columns together
TEXTS = 64 * MIB  # spelt out in a group of rows: Arrow keeps them all, each with 50 bytes
UNPACKED = 4 * GIB
