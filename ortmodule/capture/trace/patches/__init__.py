"""What a capture replaces in torch and in Python while a module is traced, a subject a file."""
