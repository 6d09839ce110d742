"""python -m nsabench"""

from nsabench.cli import main

main()
