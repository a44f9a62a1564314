"""What a trace spends its time on, of what nobody needs or what was made before."""
