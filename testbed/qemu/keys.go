package qemu

import "context"

// SendKeys presses keys of the machine's keyboard together and lets them go. Each is a QKeyCode of QEMU's QMP reference, such as
// "alt", "sysrq" or "f".
func (vm *VM) SendKeys(ctx context.Context, keys ...string) error {
	_, err := vm.execute(ctx, "send-key", keyArguments(keys))
	return err
}

// keyArguments are those of send-key.
func keyArguments(keys []string) any {
	type key struct {
		Type string `json:"type"`
		Data string `json:"data"`
	}
	list := []key{}
	for _, k := range keys {
		list = append(list, key{"qcode", k})
	}
	return map[string]any{"keys": list}
}
