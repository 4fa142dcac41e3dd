package scenario

// All lists the scenarios.
func All() []Scenario {
	return []Scenario{
		provisionScenario(), clockScenario("clock-past", 2000), clockScenario("clock-future", 2090),
		refuseScenario(), discoverScenario(),
		floodScenario(),
		ambiguousDiskScenario(), tamperedImageScenario(),
		hostileScenario(),
		wrongDiskScenario(), tooLargeImageScenario(), twoMachinesScenario(),
		truncatedImageScenario(), http503Scenario(), duplicateUUIDScenario(),
		stolenScriptScenario(),
		cancelScenario(),
		undionlyScenario(),
	}
}
