"""What the user's code asks while it is traced: answered, noted as a condition, or refused."""
