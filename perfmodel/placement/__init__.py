"""From unsharded operators to what each rank computes and sends."""
