"""The load generator of `ledgermq bench` and of the programs in bench/."""
