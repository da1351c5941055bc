"""What maintainers run and users do not: what makes what ships, benchmarks, and predictions beside others' figures."""
