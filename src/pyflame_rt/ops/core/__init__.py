"""What an operator is: registry, signatures, values, tracing, inference, evaluation."""
