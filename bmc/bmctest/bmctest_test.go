package bmctest_test

import (
	"testing"

	"firstlight/bmc"
	"firstlight/bmc/bmctest"
)

func TestTwinConforms(t *testing.T) {
	t.Parallel()
	bmctest.Run(t, func(*testing.T) bmc.Controller { return &bmctest.Twin{} })
}
