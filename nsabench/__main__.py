from nsabench.cli import main

main()
